"""Result of a backfill: read from the index, and told in sentences, as JSON and as a progress line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from memory.embedding.selection import ProviderChoice
from memory.status.condition_texts import counted, duration
from memory.store.reader import IndexCounts
from recalld.runs.backfill_plan import BackfillPlan
from recalld.runs.estimate import cost_body, cost_sentence
from recalld.runs.outcome import Outcome, exit_code
from recalld.runs.progress_bar import Progress, ProgressBar
from recalld.runs.status import size
from recalld.wiring import fingerprint_of, generations_of
from schemas.documents import DocumentKey, FileStat
from schemas.ports import Usage
from schemas.settings import Settings

#: Left transcripts that are listed; the others are counted.
_LISTED = 20


@dataclass(frozen=True, slots=True)
class TranscriptStates:
    """Number of `indexed` transcripts, reasons of the `failed` ones by key, and those `left` for a later run."""

    indexed: int
    failed: Mapping[DocumentKey, str]
    left: tuple[DocumentKey, ...]


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """Result of a backfill. `detached`: after an interrupt a daemon goes on with the queue.

    `spent` are usages, each with a sentence for people.
    """

    states: TranscriptStates
    outcome: Outcome
    spent: tuple[tuple[Usage, str], ...]
    seconds: float
    interrupted: bool
    detached: bool

    @property
    def exit_code(self) -> int:
        """Return 130 after an interrupt, 1 if documents are missing, 4 if only unavailable vectors are, else 0."""
        if self.interrupted:
            return 130
        return 1 if self.states.failed or self.states.left else exit_code([self.outcome])


def transcript_states(settings: Settings, plan: BackfillPlan) -> TranscriptStates:
    """Return the states of the wanted transcripts, read from the index."""
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
        # A transcript that grows meanwhile counts as soon as the index has its planned part.
        if key not in failed and (key not in known or is_behind(known[key], stat))
    )
    return TranscriptStates(len(plan.wanted) - len(failed) - len(left), failed, left)


def is_behind(known: FileStat, wanted: FileStat) -> bool:
    """Return True if the index knows an older state of a file than the wanted one."""
    if known.mtime_ns != wanted.mtime_ns:
        return known.mtime_ns < wanted.mtime_ns
    return known.ctime_ns != 0 and known.ctime_ns < wanted.ctime_ns


def plan_sentence(plan: BackfillPlan) -> str:
    """Return the plan in one line."""
    cost = plan.estimate
    parts = [f"{counted(len(plan.wanted), 'transcript')} to index ({size(plan.size)})"]
    parts += [f"{plan.unchanged:,} indexed already"] if plan.unchanged else []
    parts += [f"{plan.found.left_out:,} left out"] if plan.found.left_out else []
    parts += [f"{count:,} {kind} left out by the settings" for kind, count in sorted(plan.not_wanted.items())]
    parts += [f"{counted(len(plan.others), 'other document')} as the index is new"] if plan.others else []
    parts += [f"{cost.failed:,} cannot be read"] if cost.failed else []
    if not plan.documents and not cost.to_embed:
        return f"{plan.agent.id}: {', '.join(parts)}"
    parts += [counted(cost.messages, "message"), counted(cost.chunks, "chunk")]
    return f"{plan.agent.id}: {', '.join(parts)}; {cost_sentence(plan.choice, cost)}"


def result_lines(plan: BackfillPlan, result: BackfillResult) -> Iterator[str]:
    """Yield the results, for standard output."""
    counts, states = result.outcome.counts, result.states
    vectors = f", {counts.vectors_ready:,} with vectors" if plan.choice.provider is not None else ""
    done = f"{states.indexed:,} of {counted(len(plan.wanted), 'transcript')} indexed in {result.seconds:.1f} s"
    if not plan.wanted:
        done = "no transcript had to be read"
    yield f"{plan.agent.id}: {done}; the index has {counts.chunks:,} chunks{vectors}"
    for _, line in result.spent:
        yield f"  spent: {line}"
    if result.outcome.in_jobs:
        yield f"  {result.outcome.in_jobs_sentence}"


def trouble_lines(result: BackfillResult) -> Iterator[str]:
    """Yield the failures with their reasons, for standard error."""
    states, outcome = result.states, result.outcome
    for key, reason in states.failed.items():
        yield f"  failed: {key.path}: {reason}"
    if states.failed:
        yield "  `recalld dead show PATH` says more; mend the file and run this command again"
    if not result.interrupted:
        for key in states.left[:_LISTED]:
            yield f"  not indexed: {key.path}: it is gone, or is being written; run this command again"
        if len(states.left) > _LISTED:
            yield f"  and {len(states.left) - _LISTED:,} more"
    if outcome.sentence:
        yield f"  {outcome.sentence}"
    if result.interrupted:
        how = "recalld up goes on with what is queued" if result.detached else "what was done is kept"
        yield f"recalld: stopped waiting; {how}; the same command resumes"


def body_of(plan: BackfillPlan, result: BackfillResult | None) -> dict[str, Any]:
    """Return plan and result as JSON. Without a result it was a dry run."""
    return {
        "ok": not plan.problems and (result is None or result.exit_code == 0),
        "dryRun": result is None,
        "interrupted": result is not None and result.interrupted,
        "error": None,
        "agent": plan.agent.id,
        "problems": list(plan.problems),
        "transcripts": len(plan.wanted),
        "unchanged": plan.unchanged,
        "leftOut": plan.found.left_out,
        "notWanted": dict(plan.not_wanted),
        "others": len(plan.others),
        "bytes": plan.size,
        "provider": plan.choice.name,
        "model": _model(plan.choice),
        "estimate": {
            "failed": plan.estimate.failed,
            "messages": plan.estimate.messages,
            "chunks": plan.estimate.chunks,
            **cost_body(plan.estimate),
        },
        "result": _result_body(result) if result is not None else None,
    }


def error_body(message: str, *, interrupted: bool = False) -> dict[str, Any]:
    """Return the JSON of a command that failed."""
    return {"ok": False, "dryRun": False, "interrupted": interrupted, "error": message, "problems": [], "result": None}


def _result_body(result: BackfillResult) -> dict[str, Any]:
    states = result.states
    return {
        "indexed": states.indexed,
        "failed": [{"path": key.path, "reason": reason} for key, reason in states.failed.items()],
        "left": len(states.left),
        **result.outcome.body(),
        "spent": [asdict(usage) for usage, _ in result.spent],
        "seconds": round(result.seconds, 3),
    }


def _model(choice: ProviderChoice) -> str | None:
    return choice.provider.model if choice.provider is not None else None


class BackfillProgress(ProgressBar):
    """Progress line of a backfill: files, chunks, rate, cache hits, failures and the time left.

    It counts from `start`, the index before. `expected` chunks are estimated to come, or wait for a vector.
    `embedded` returns the number of texts sent since then.
    """

    def __init__(self, *, start: IndexCounts, expected: int, embedded: Callable[[], int]) -> None:
        super().__init__()
        self._start = start
        self._expected = expected
        self._embedded = embedded

    def parts(self, progress: Progress) -> list[str]:
        """Return the parts of the line."""
        counts, start = progress.counts, self._start
        read = max(0, counts.chunks - start.chunks + start.vectors_pending)
        expected = max(self._expected, read)
        finished = max(0, read - counts.vectors_pending)
        cached = counts.vectors_ready - start.vectors_ready - self._embedded()
        parts = [f"files {progress.documents:,}/{progress.of_documents:,}", f"chunks {read:,}/{expected:,}"]
        parts.append(f"{finished / max(self.seconds, 0.001):,.0f}/s")
        if cached > 0:
            parts.append(f"{cached:,} from the cache")
        if counts.vectors_pending:
            parts.append(f"{counts.vectors_pending:,} wait for vectors (keywords work)")
        if progress.failed:
            parts.append(f"{progress.failed:,} failed")
        if 0 < finished < expected:
            parts.append(f"about {duration(max(1.0, (expected - finished) * self.seconds / finished))} left")
        return parts
