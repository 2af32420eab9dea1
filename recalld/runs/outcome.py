"""Outcome of a run for each agent, read from its index, as lines for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import click

from memory.embedding.selection import NO_VECTORS, ProviderChoice
from memory.index.fingerprint import embedding_of, name_in
from memory.index.generations import Generations
from memory.index.provider_fallback import provider_of
from memory.status.answering import no_prefixes, no_vectors
from memory.status.condition_texts import text_of
from memory.store.reader import IndexCounts, StoreReader
from recalld.invocation import to_type
from recalld.terminal_text import printable_json, printable_name
from schemas.conditions import Condition, ConditionCode, Param
from schemas.ports import Usage
from schemas.settings import AgentSettings, Settings


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run for one agent. `condition` is the reason why vectors, or anything, will not come.

    `in_jobs`: batch jobs have all missing vectors, and the command does not wait for them.
    """

    agent: str
    counts: IndexCounts
    failed: tuple[str, ...] = ()
    in_jobs: bool = False
    condition: Condition | None = None
    advice: Condition | None = None

    @property
    def sentence(self) -> str | None:
        """Return the reason for missing results, for people; None when all came."""
        return text_of(self.condition) if self.condition is not None else None

    @property
    def stopped(self) -> str | None:
        """Return the reason as `--json` has it: without the count of chunks, which stands beside it."""
        if self.condition is not None and self.condition.code is ConditionCode.VECTORS_WAIT:
            return str(self.condition.params["reason"])
        return self.sentence

    @property
    def in_jobs_sentence(self) -> str:
        """Return a sentence on the chunks that wait in batch jobs, for people."""
        return (
            f"{self.counts.vectors_pending:,} chunks wait in batch jobs (`recalld jobs`); `recalld up`, or this "
            "command again, takes in what they bring"
        )

    def body(self) -> dict[str, Any]:
        """Return the fields that every command with an outcome has in its JSON."""
        return {
            "chunks": self.counts.chunks,
            "vectorsReady": self.counts.vectors_ready,
            "vectorsPending": self.counts.vectors_pending,
            "stopped": self.stopped,
            "code": self.condition.code if self.condition is not None else None,
            "inBatchJobs": self.in_jobs,
        }


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Return 0 when all was done, 4 when it was done by keyword only for want of a provider, else 1."""
    codes = {one.condition.code for one in outcomes if one.condition is not None}
    if any(one.failed for one in outcomes) or codes - {ConditionCode.VECTORS_UNAVAILABLE}:
        return 1
    return 4 if codes else 0


class AgentIndex:
    """Index of one agent as a run sees it: the generation under construction, else the answering one."""

    def __init__(self, settings: Settings, agent: AgentSettings) -> None:
        self.settings = settings
        self.agent = agent
        self.generations = Generations.of(settings, agent.id)
        self._open: tuple[str, StoreReader] | None = None

    @property
    def name(self) -> str | None:
        """Name of the generation."""
        return self.generations.next() or self.generations.current()

    @property
    def choice(self) -> ProviderChoice:
        """Choice of the agent's embedding provider."""
        return provider_of(self.settings, self.agent)

    def reader(self) -> StoreReader | None:
        """Return a reader of the generation, None without one."""
        name = self.name
        if name is None:
            return None
        if self._open is None or self._open[0] != name:
            self.close()
            reader = self.generations.open_named(name)
            self._open = (name, reader) if reader is not None else None
        return self._open[1] if self._open is not None else None

    def counts(self) -> IndexCounts:
        """Return the counts of the index; without missing vectors where only keywords are wanted."""
        reader = self.reader()
        if reader is None:
            return IndexCounts()
        return reader.counts() if self._wants_vectors() else replace(reader.counts(), vectors_pending=0)

    def failed(self) -> tuple[str, ...]:
        """Return the failed documents with their reasons."""
        reader = self.reader()
        return tuple(f"{letter.key.path}: {letter.reason}" for letter in reader.dead_letters()) if reader else ()

    def outcome(self, *, condition: Condition | None = None, in_jobs: bool = False) -> Outcome:
        """Return the present state; `condition` is a reason that is known already."""
        counts, choice = self.counts(), self.choice
        return Outcome(
            agent=self.agent.id,
            counts=counts,
            failed=self.failed(),
            in_jobs=in_jobs,
            condition=condition or self.lack(counts, choice) or self._made_otherwise(choice),
            advice=no_prefixes(self.agent.id, self.agent, choice, chunks=counts.chunks),
        )

    def lack(self, counts: IndexCounts, choice: ProviderChoice) -> Condition | None:
        """Return why vectors cannot be had from any provider; None where they can, or are not lacking."""
        pending = counts.vectors_pending
        if self.generations.next() is not None or not (pending or not self._wants_vectors()):
            return None
        ready = counts.vectors_ready if pending else 0
        return no_vectors(self.agent.id, choice, files=counts.files, ready=ready, pending=pending)

    def close(self) -> None:
        """Close the reader."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _wants_vectors(self) -> bool:
        reader = self.reader()
        identity = reader.meta("identity") if reader is not None else None
        return reader is not None and (identity is None or embedding_of(identity) != NO_VECTORS)

    def _made_otherwise(self, choice: ProviderChoice) -> Condition | None:
        """Return a condition if the workers have other settings or keys than this process, else None."""
        reader = self.reader()
        if choice.provider is None or reader is None:
            return None
        made_with = embedding_of(reader.meta("identity"))
        if made_with == choice.provider.identity:
            return None
        params: dict[str, Param] = {"made_with": name_in(made_with), "provider": choice.provider.name}
        return Condition(ConditionCode.WORKERS_DIFFER, self.agent.id, params=params)


@dataclass(frozen=True, slots=True)
class Report:
    """Result of `recalld index` or `recalld rebuild`. `spent` are usages by agent, each with a sentence for people."""

    outcomes: Sequence[Outcome]
    seconds: float
    spent: Mapping[str, Sequence[tuple[Usage, str]]]
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        return 130 if self.interrupted else exit_code(self.outcomes)

    def print(self, *, as_json: bool) -> None:
        """Print one JSON object, or lines: results on standard output, failures on standard error."""
        if as_json:
            click.echo(printable_json(self._body()))
            return
        for one in self.outcomes:
            typed = partial(to_type, agent=one.agent if len(self.outcomes) > 1 else None)
            for line, is_result in self._lines(one):
                click.echo(typed(line), err=not is_result)
        if self.interrupted:
            click.echo("stopped; what was done is kept, the same command goes on", err=True)

    def _body(self) -> dict[str, Any]:
        agents = [
            {
                "agent": one.agent,
                "files": one.counts.files,
                "failed": list(one.failed),
                **one.body(),
                "advice": one.advice.code if one.advice is not None else None,
                "spent": [asdict(usage) for usage, _ in self.spent.get(one.agent, ())],
            }
            for one in self.outcomes
        ]
        ok = not (self.interrupted or exit_code(self.outcomes))
        return {"ok": ok, "seconds": round(self.seconds, 3), "agents": agents}

    def _lines(self, one: Outcome) -> Iterator[tuple[str, bool]]:
        counts = one.counts
        yield (
            (
                f"{one.agent}: {counts.files:,} documents, {counts.chunks:,} chunks, "
                f"{counts.vectors_ready:,} with vectors ({self.seconds:.1f} s)"
            ),
            True,
        )
        for _, sentence in self.spent.get(one.agent, ()):
            yield f"  spent: {sentence}", True
        for line in one.failed:
            yield f"  failed: {printable_name(line)}", False
        if one.failed:
            yield "  `recalld dead show PATH` says more, `recalld dead retry PATH` tries again", False
        if one.in_jobs:
            yield f"  {one.in_jobs_sentence}", True
        if one.sentence:
            yield f"  {one.sentence}", False
        if one.advice is not None:
            yield f"  {text_of(one.advice)}", True
