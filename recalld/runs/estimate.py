"""Cost of embedding: estimated without indexing (`--dry-run`), and counted while a command runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import date
from typing import Any

import click

from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import forgets
from memory.documents.roots import priority
from memory.embedding.batch_jobs.batch_ledger import BatchLedger, ledger_path
from memory.embedding.cache import EmbeddingCache
from memory.embedding.providers.presets import price_of
from memory.embedding.selection import ProviderChoice
from memory.index.estimate import Estimate, estimate
from memory.index.provider_fallback import provider_of
from memory.status.condition_texts import counted, duration
from recalld.invocation import Invocation
from recalld.runs.status import FREE_OF_CHARGE, dollars, spent_text
from recalld.settings.load import check_workspace
from recalld.terminal_text import fields, printable_json
from recalld.wiring import generations_of, indexes_of
from schemas.documents import DocumentKey
from schemas.ports import Usage
from schemas.settings import AgentSettings, Settings
from workers.batch_jobs import FEWEST_TEXTS
from workers.health.health_store import HealthStore

EstimateFor = Callable[[AgentSettings, AgentFiles, Iterable[DocumentKey]], tuple[ProviderChoice, Estimate]]


def run_estimate(invocation: Invocation, *, fresh: bool, as_json: bool) -> int:
    """Print what indexing the agents (with `fresh`: building their indexes anew) would cost. Return the exit code."""
    settings, agents = invocation.settings, invocation.agents()
    for agent in agents:
        check_workspace(agent)
    bodies = []
    with estimates(settings, fresh=fresh) as estimate_for:
        for agent in agents:
            files = AgentFiles.of(settings, agent)
            choice, found = estimate_for(agent, files, _documents(settings, agent, files, fresh=fresh))
            body = {"documents": found.documents, "vanished": found.vanished, **cost_body(found)}
            bodies.append({"agent": agent.id, **provider_body(choice), **body})
            if not as_json:
                click.echo(f"{agent.id}: {_sentence(choice, found)}")
    if as_json:
        click.echo(printable_json({"ok": True, "dryRun": True, "agents": bodies}))
    return 0


@contextmanager
def estimates(settings: Settings, *, fresh: bool = False) -> Iterator[EstimateFor]:
    """Open the cache for the block, if there is one, and give the function that estimates documents of an agent.

    Texts in batch jobs are paid for, and a text of several agents is counted once.
    """
    cache_file, ledger_file = settings.home / "cache" / "embeddings.sqlite", ledger_path(settings.home)
    bought: set[tuple[str, str]] = set()
    with ExitStack() as opened:
        cache = None
        if settings.cache.enabled and cache_file.is_file():
            cache = EmbeddingCache(cache_file)
            opened.callback(cache.close)
        if settings.cache.enabled and ledger_file.is_file():
            with BatchLedger(ledger_file) as ledger:
                bought = ledger.everything()

        def estimate_for(
            agent: AgentSettings, files: AgentFiles, documents: Iterable[DocumentKey]
        ) -> tuple[ProviderChoice, Estimate]:
            choice = provider_of(settings, agent)
            choice = choice.for_rebuild() if fresh else choice
            try:
                return choice, estimate(
                    agent,
                    documents,
                    files=files,
                    generations=generations_of(settings, agent),
                    choice=choice,
                    cache=cache,
                    fresh=fresh,
                    bought=bought if settings.cache.enabled else None,
                    batch_from=FEWEST_TEXTS if settings.cache.enabled else None,
                )
            finally:
                if choice.provider is not None:
                    choice.provider.close()

        yield estimate_for


def _documents(settings: Settings, agent: AgentSettings, files: AgentFiles, *, fresh: bool) -> list[DocumentKey]:
    """Return the documents on disk, and those that the index knows and the disk has not, where it could be listed."""
    scan, today = files.scan(), date.today()  # the names of notes have local days
    documents = sorted(scan.documents, key=lambda key: priority(key, today=today))
    reader = None if fresh else indexes_of(settings).indexed(agent)
    if reader is None:
        return documents
    with closing(reader):
        known = [file.key for file in reader.files()]
        absent = [key for key in known if key not in scan.documents and forgets(files, key, reader)]
    return documents + [key for key in absent if not scan.hides(files.path_of(key))]


def _sentence(choice: ProviderChoice, found: Estimate) -> str:
    parts = [f"{counted(found.documents, 'document')} changed"]
    parts += [f"{counted(found.vanished, 'document')} to forget"] if found.vanished else []
    parts += [f"{counted(found.failed, 'document')} cannot be read"] if found.failed else []
    return f"{', '.join([*parts, counted(found.chunks, 'chunk')])}; {cost_sentence(choice, found)}"


def cost_sentence(choice: ProviderChoice, found: Estimate) -> str:
    """Return the texts to embed and their cost, in a sentence."""
    if choice.provider is None:
        return f"{choice.error or choice.reason or 'keywords only'}: nothing to pay"
    cached = [f"{found.cached:,} cached"] if found.texts else []
    if not found.to_embed:
        return ", ".join([*cached, "nothing to embed, nothing to pay"])
    parts = [
        *cached,
        f"{counted(found.to_embed, 'text')} to embed",
        f"{found.tokens / 1e6:.1f} M tokens" if found.tokens >= 1_000_000 else f"{found.tokens:,} tokens",
        f"about {counted(found.requests, 'request')}",
        _money(choice.provider.model, found),
        "within hours" if found.batch else f"about {duration(max(1.0, found.seconds))}",
    ]
    return ", ".join(parts)


def _money(model: str, found: Estimate) -> str:
    if found.dollars is None or found.price is None:
        return f"at a price that is not known for {model} (remote.price_per_million_tokens says it)"
    if found.price == 0:
        return "free of charge"
    how = " through its Batch API" if found.batch else ""
    return f"{dollars(found.dollars)} ({model}{how} at ${found.price:g} a million tokens)"


def provider_body(choice: ProviderChoice) -> dict[str, Any]:
    """Return provider and model as JSON."""
    return {"provider": choice.name, "model": choice.provider.model if choice.provider is not None else None}


def cost_body(found: Estimate) -> dict[str, Any]:
    """Return chunks and texts to embed, and their cost, as JSON."""
    return {
        **fields(found, "failed", "chunks", "texts", "cached", "to_embed", "tokens", "requests", "batch"),
        "pricePerMillionTokens": found.price,
        "dollars": round(found.dollars, 6) if found.dollars is not None else None,
        "seconds": round(found.seconds, 3),
    }


class Spending:
    """Cost of embedding documents from now on. Searches of other processes are not counted."""

    def __init__(self, board: HealthStore, agents: Sequence[AgentSettings]) -> None:
        self._board = board
        self._agents = {agent.id: agent for agent in agents}
        self._before = {
            (agent.id, usage.provider, usage.model): usage
            for agent in agents
            for usage in board.usage(agent.id, queries=False)
        }

    def of(self, agent: str) -> list[tuple[Usage, str]]:
        """Return the usage of one agent since then, each with a line for people, without what is free of charge."""
        used = [one for one in self._since(agent) if one.requests and one.provider not in FREE_OF_CHARGE]
        return [(usage, self._sentence(agent, usage)) for usage in used]

    def embedded(self) -> int:
        """Return the number of texts that were sent since then."""
        return sum(usage.inputs for agent in self._agents for usage in self._since(agent))

    def _since(self, agent: str) -> Iterator[Usage]:
        for usage in self._board.usage(agent, queries=False):
            before = self._before.get((agent, usage.provider, usage.model), Usage(usage.provider, usage.model))
            yield replace(
                usage,
                requests=usage.requests - before.requests,
                failed=usage.failed - before.failed,
                inputs=usage.inputs - before.inputs,
                tokens=usage.tokens - before.tokens,
            )

    def _sentence(self, agent: str, usage: Usage) -> str:
        text = spent_text(usage.provider, usage.model, usage.requests, usage.failed, usage.tokens)
        price = price_of(self._agents[agent], usage.provider, usage.model)
        return f"{text}, {dollars(price * usage.tokens / 1e6)}" if price and usage.tokens else text
