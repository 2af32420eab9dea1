"""Outcome of a run for each agent, read from its index, as lines for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from memory.embedding.prices import cost_of
from memory.embedding.selection import NO_VECTORS
from memory.index.fingerprint import embedding_of, name_in
from memory.index.provider import embeds_sentences
from memory.status.agent import no_documents
from memory.status.condition_texts import counted, text_of
from memory.status.vectors import no_vectors
from memory.store.errors import OtherFormat
from memory.store.reader import StoreReader
from recalld.invocation import to_type
from recalld.runs.status import dollars, spent_text
from recalld.terminal_text import fields, printable_name
from recalld.wiring import AgentIndex
from schemas.conditions import Condition, ConditionCode, Param
from schemas.documents import DocumentKey
from schemas.ports import Usage
from schemas.settings import AgentSettings, Settings
from schemas.status import IndexCounts

#: Conditions of an agent without a document, and of every run that did all it could.
OF_EMPTY_AGENTS = frozenset({ConditionCode.NO_DOCUMENTS, ConditionCode.NOTES_NOT_TAKEN})
_NOT_OK = frozenset({ConditionCode.VECTORS_UNAVAILABLE, ConditionCode.VECTORS_HELD, *OF_EMPTY_AGENTS})

#: Documents that are not indexed and listed; the others are counted.
_LISTED = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run for one agent. `condition` is the reason why vectors, or anything, will not come.

    `failed` are documents with their reasons, `left` documents without anything in the index, `spent` usages with a
    sentence each. `in_jobs`: batch jobs have all missing vectors, and the command does not wait for them. `done` is the
    text about the work in a line for people, by default about the whole index.
    """

    agent: str
    counts: IndexCounts
    failed: Mapping[DocumentKey, str] = field(default_factory=dict)
    spent: Sequence[tuple[Usage, str]] = ()
    in_jobs: bool = False
    condition: Condition | None = None
    left: Sequence[DocumentKey] = ()
    done: str | None = None

    def body(self) -> dict[str, Any]:
        """Return the fields that every command with an outcome has in its JSON."""
        condition = self.condition
        stopped = text_of(condition) if condition is not None else None
        if condition is not None and condition.code is ConditionCode.VECTORS_WAIT:
            stopped = str(condition.params["reason"])  # without the count of chunks, which stands beside it
        return {
            **fields(self.counts, "chunks", "vectors_ready", "vectors_pending"),
            "stopped": stopped,
            "code": condition.code if condition is not None else None,
            "inBatchJobs": self.in_jobs,
            "consent": self._consent(),
            "spent": [asdict(usage) for usage, _ in self.spent],
        }

    def _consent(self) -> dict[str, Any] | None:
        """Return the cost of the texts that wait for a consent, and the command that gives it; None without any."""
        if self.condition is None or self.condition.code is not ConditionCode.VECTORS_HELD:
            return None
        figures = {name: self.condition.params.get(name) for name in ("texts", "tokens", "dollars")}
        return {**figures, "command": f"recalld index --agent {self.agent} --yes"}

    def lines(self, *, seconds: float, all_left: bool) -> Iterator[tuple[str, bool]]:
        """Yield lines for people, each with True for a result, False for a failure."""
        counts = self.counts
        figures = counted(counts.files, "document"), counted(counts.chunks, "chunk")
        indexed = f"{', '.join(figures)}, {counts.vectors_ready:,} with vectors"
        yield f"{self.agent}: {self.done or f'{indexed} ({seconds:.1f} s)'}", True
        for _, sentence in self.spent:
            yield f"  spent: {sentence}", True
        for key, reason in self.failed.items():
            yield f"  failed: {key.path}: {reason}", False
        if self.failed:
            yield "  see `recalld dead show PATH`; try again with `recalld dead retry PATH`", False
        if self.in_jobs:
            how = "`recalld up`, or this command again, takes in what they bring"
            yield f"  {self.counts.vectors_pending:,} chunks wait in batch jobs (`recalld jobs`); {how}", True
        if self.condition is not None:
            yield f"  {text_of(self.condition)}", False
            all_left = all_left and self.condition.code is not ConditionCode.BACKFILL_HALTED
        for key in self.left[:_LISTED] if all_left else ():
            yield f"  not indexed: {key.path}: it is gone, or is being written; run this command again", False
        if all_left and len(self.left) > _LISTED:
            yield f"  and {len(self.left) - _LISTED:,} more", False


def spent_line(agent: AgentSettings, usage: Usage) -> tuple[Usage, str]:
    """Return an agent's usage with a line for people."""
    text = spent_text(usage.provider, usage.model, usage.requests, usage.failed, usage.tokens)
    cost = cost_of(agent, usage)
    return usage, text + (f", {dollars(cost)}" if cost else "")


class RunIndex(AgentIndex):
    """Index of one agent as a run sees it: the generation under construction, else the answering one."""

    def __init__(self, settings: Settings, agent: AgentSettings) -> None:
        super().__init__(settings, agent)
        self._open: tuple[str | None, StoreReader] | None = None
        #: The reason why the index is built anew, if it has another format.
        self.other_format: str | None = None

    @property
    def name(self) -> str | None:
        """Name of the generation."""
        return self.generations.next() or self.generations.current()

    def reader(self) -> StoreReader | None:
        """Return a reader of the generation, None without one or if it has another format."""
        name, reader = self.name, None
        if self._open is None or self._open[0] != name:
            self.close()
            try:
                reader = self.generations.open_named(name) if name is not None else None
            except OtherFormat as error:
                self.other_format = str(error)
            self._open = (name, reader) if reader is not None else None
        return self._open[1] if self._open is not None else None

    def counts(self) -> IndexCounts:
        """Return the counts of the index; without missing vectors where only keywords are wanted."""
        reader = self.reader()
        counts = reader.counts() if reader is not None else IndexCounts()
        return counts if self._wants_vectors() else counts.model_copy(update={"vectors_pending": 0})

    def lacking_sentences(self) -> int:
        """Return the number of chunks whose sentences are to be embedded."""
        reader = self.reader() if embeds_sentences(self.agent, self.choice.provider) else None
        ready, newest = reader.sentence_counts() if reader is not None else (0, 0)
        return newest - ready

    def lacks_users_words(self) -> bool:
        """Return True if an older version left out the users' words of some chunks."""
        reader = self.reader()
        return reader is not None and reader.lacks_users_words()

    def failed(self) -> dict[DocumentKey, str]:
        """Return the failed documents with their reasons."""
        reader = self.reader()
        return {letter.key: letter.reason for letter in reader.dead_letters()} if reader is not None else {}

    def outcome(self, *, condition: Condition | None = None, in_jobs: bool = False) -> Outcome:
        """Return the present state; a `condition` that is given is its reason."""
        counts = self.counts()
        return Outcome(
            agent=self.agent.id,
            counts=counts,
            failed=self.failed(),
            in_jobs=in_jobs,
            condition=condition or self._emptiness(counts) or self.lack(counts) or self._workers_differ(),
        )

    def lack(self, counts: IndexCounts) -> Condition | None:
        """Return the reason why no provider gives vectors; None if one does, or if none are missing."""
        if self.generations.next() is not None or (self._wants_vectors() and not counts.vectors_pending):
            return None
        return no_vectors(self.agent.id, self.choice.lacking, counts)

    def _emptiness(self, counts: IndexCounts) -> Condition | None:
        """Return the condition of an index without a document, if its workspace is there."""
        return no_documents(self.agent) if not counts.files and self.agent.workspace.is_dir() else None

    def close(self) -> None:
        """Close the reader."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _wants_vectors(self) -> bool:
        return self._made_with() not in {None, NO_VECTORS}

    def _made_with(self) -> str | None:
        """Return the identity of the generation's provider; None without a readable generation."""
        reader = self.reader()
        return embedding_of(reader.meta("identity")) if reader is not None else None

    def _workers_differ(self) -> Condition | None:
        """Return a condition if the workers have other settings or keys than this process, else None."""
        made_with, provider = self._made_with(), self.choice.provider
        if provider is None or made_with in {None, provider.identity}:
            return None
        params: dict[str, Param] = {"made_with": name_in(str(made_with)), "provider": provider.name}
        return Condition(ConditionCode.WORKERS_DIFFER, self.agent.id, params=params)


@dataclass(frozen=True, slots=True)
class Report:
    """Outcomes of a run, one an agent, and its seconds. `detached`: after an interrupt a daemon goes on."""

    outcomes: Sequence[Outcome]
    seconds: float
    interrupted: bool = False
    detached: bool = False

    @property
    def exit_code(self) -> int:
        """Exit code: 130 after an interrupt, 1 if something is missing, 4 without documents, or without a provider."""
        codes = {outcome.condition.code for outcome in self.outcomes if outcome.condition is not None}
        if self.interrupted:
            return 130
        is_partial = any(outcome.failed or outcome.left for outcome in self.outcomes)
        if is_partial or codes - _NOT_OK:
            return 1
        return 4 if codes else 0

    def print_lines(self, *, failures_only: bool = False) -> None:
        """Print results on standard output and failures on standard error."""
        for outcome in self.outcomes:
            agent = outcome.agent if len(self.outcomes) > 1 else None
            for line, is_result in outcome.lines(seconds=self.seconds, all_left=not self.interrupted):
                if not (is_result and failures_only):
                    click.echo(to_type(printable_name(line), agent=agent), err=not is_result)
        if self.interrupted:
            how = "what was done is kept"
            if self.detached:
                stops = "`recalld backfill --pause` or `recalld backfill --cancel` stops it"
                how = f"recalld up goes on with what is queued, and {stops}"
            click.echo(to_type(f"recalld: stopped waiting; {how}; the same command resumes"), err=True)

    def body(self) -> dict[str, Any]:
        """Return the report as JSON."""
        agents = [
            {
                "agent": outcome.agent,
                "files": outcome.counts.files,
                "failed": [f"{key.path}: {reason}" for key, reason in outcome.failed.items()],
                **outcome.body(),
            }
            for outcome in self.outcomes
        ]
        return {"ok": self.exit_code == 0, "seconds": round(self.seconds, 3), "agents": agents}
