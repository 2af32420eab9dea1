"""What became of a backfill's transcripts: the index says it, whoever did the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recalld.runs.backfill_plan import BackfillPlan
from recalld.runs.wait import Outcome, exit_code
from recalld.wiring import fingerprint_of, generations_of
from schemas.documents import DocumentKey, FileStat
from schemas.ports import Usage
from schemas.settings import Settings


@dataclass(frozen=True, slots=True)
class TranscriptStates:
    """How many transcripts are `indexed`; why others `failed`, by key; which are `left` for a later run."""

    indexed: int
    failed: Mapping[DocumentKey, str]
    left: tuple[DocumentKey, ...]


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """How a backfill ended. `detached`: it was interrupted, and a daemon goes on with what is queued.

    `held_back` documents were not queued yet; `usage` is what was spent, `spent` says it to a person.
    """

    states: TranscriptStates
    outcome: Outcome
    usage: tuple[Usage, ...]
    spent: tuple[str, ...]
    seconds: float
    interrupted: bool
    detached: bool
    held_back: int

    @property
    def exit_code(self) -> int:
        """130 when it was interrupted, 1 when something is missing, 4 when only vectors that cannot be had are."""
        if self.interrupted:
            return 130
        return 1 if self.states.failed or self.states.left else exit_code([self.outcome])


def transcript_states(settings: Settings, plan: BackfillPlan) -> TranscriptStates:
    """Ask the index what became of the wanted transcripts."""
    generations = generations_of(settings, plan.agent)
    reader = generations.target_reader(fingerprint_of(settings, plan.agent).digest)
    if reader is None:
        return TranscriptStates(0, {}, tuple(plan.wanted))
    try:
        letters = {letter.key: letter.reason for letter in reader.dead_letters()}
        known = {file.key: file.stat for file in reader.files()}
    finally:
        reader.close()
    failed = {key: letters[key] for key in plan.wanted if key in letters}
    left = tuple(
        key
        for key, stat in plan.wanted.items()
        # One that grows meanwhile counts as soon as the index has what was there; its rest is not this backfill's.
        if key not in failed and (key not in known or is_behind(known[key], stat))
    )
    return TranscriptStates(len(plan.wanted) - len(failed) - len(left), failed, left)


def is_behind(known: FileStat, wanted: FileStat) -> bool:
    """Whether what the index knows of a file is older than what was wanted of it."""
    if known.mtime_ns != wanted.mtime_ns:
        return known.mtime_ns < wanted.mtime_ns
    return known.ctime_ns != 0 and known.ctime_ns < wanted.ctime_ns


def missing_documents(settings: Settings, plan: BackfillPlan) -> Sequence[DocumentKey]:
    """The wanted transcripts that neither are in the index nor failed."""
    return transcript_states(settings, plan).left
