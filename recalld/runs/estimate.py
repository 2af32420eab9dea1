"""Cost of embedding: estimated without indexing (`--dry-run`), and counted while a command runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import click

from memory.documents.agent_files import AgentFiles
from memory.embedding.batch_jobs.batch_ledger import BatchLedger
from memory.embedding.batch_jobs.ledger_reader import ledger_path
from memory.embedding.cache_reader import EmbeddingCacheReader, cache_path
from memory.index.estimate import Estimate, estimate
from memory.status.condition_texts import counted, duration
from recalld.invocation import Invocation
from recalld.runs.outcome import spent_line
from recalld.runs.status import FREE_OF_CHARGE, dollars
from recalld.settings.load import check_workspace
from recalld.terminal_text import fields, printable_json
from recalld.wiring import compare
from schemas.documents import DocumentKey
from schemas.ports import Usage
from schemas.settings import AgentSettings, Settings
from workers.batch_jobs import FEWEST_TEXTS
from workers.health.health_store import HealthStore

#: Fields of `Usage` that only grow.
_COUNTS = ("requests", "failed", "inputs", "tokens")

EstimateFor = Callable[[AgentSettings, AgentFiles, Iterable[DocumentKey]], Estimate]


def run_estimate(invocation: Invocation, *, fresh: bool, as_json: bool) -> int:
    """Print the cost of indexing the agents, with `fresh` of building their indexes anew. Return the exit code."""
    settings, agents = invocation.settings, invocation.agents()
    for agent in agents:
        check_workspace(agent)
    bodies = []
    estimate_for = estimates(settings, fresh=fresh)
    for agent in agents:
        files = AgentFiles.of(settings, agent)
        documents = files.scan().documents if fresh else compare(settings, agent, records_folders=False).documents
        cost = estimate_for(agent, files, documents)
        counts = fields(cost, "provider", "model", "documents", "vanished")
        bodies.append({"agent": agent.id, **counts, **cost_body(cost)})
        if not as_json:
            click.echo(f"{agent.id}: {_sentence(cost)}")
    if as_json:
        click.echo(printable_json({"ok": True, "dryRun": True, "agents": bodies}))
    return 0


def estimates(settings: Settings, *, fresh: bool = False) -> EstimateFor:
    """Return the function that estimates documents of an agent.

    Texts in batch jobs are paid for, and a text of several agents is counted once.
    """
    with_cache, ledger_file = settings.cache.enabled, ledger_path(settings.home)
    cache = EmbeddingCacheReader(cache_path(settings.home)) if with_cache else None
    bought: set[tuple[str, str]] = set()
    if with_cache and ledger_file.is_file():
        with BatchLedger(ledger_file) as ledger:
            bought = ledger.everything()

    def estimate_for(agent: AgentSettings, files: AgentFiles, documents: Iterable[DocumentKey]) -> Estimate:
        return estimate(
            settings,
            agent,
            documents,
            files=files,
            cache=cache,
            fresh=fresh,
            bought=bought if with_cache else None,
            batch_from=FEWEST_TEXTS if with_cache else None,
        )

    return estimate_for


def _sentence(cost: Estimate) -> str:
    parts = [
        f"{counted(cost.documents, 'document')} changed",
        f"{counted(cost.vanished, 'document')} to forget" if cost.vanished else "",
        f"{counted(cost.failed, 'document')} cannot be read" if cost.failed else "",
        counted(cost.chunks, "chunk"),
    ]
    return f"{', '.join(filter(None, parts))}; {cost_sentence(cost)}"


def cost_sentence(cost: Estimate) -> str:
    """Return the texts to embed and their cost, in a sentence."""
    if cost.provider == "none":
        return f"{cost.reason or 'keywords only'}: nothing to pay"
    cached = [f"{cost.cached:,} cached"] if cost.texts else []
    if not cost.to_embed:
        return ", ".join([*cached, "nothing to embed, nothing to pay"])
    parts = [
        *cached,
        f"{counted(cost.to_embed, 'text')} to embed",
        f"{cost.tokens / 1e6:.1f} M tokens" if cost.tokens >= 1_000_000 else f"{cost.tokens:,} tokens",
        f"about {counted(cost.requests, 'request')}",
        _money(cost),
        "within hours" if cost.batch else f"about {duration(max(1.0, cost.seconds))}",
    ]
    return ", ".join(parts)


def _money(cost: Estimate) -> str:
    if cost.dollars is None or cost.price is None:
        return f"at a price that is not known for {cost.model} (remote.price_per_million_tokens says it)"
    if cost.price == 0:
        return "free of charge"
    how = " through its Batch API" if cost.batch else ""
    return f"{dollars(cost.dollars)} ({cost.model}{how} at ${cost.price:g} a million tokens)"


def cost_body(cost: Estimate) -> dict[str, Any]:
    """Return chunks and texts to embed, and their cost, as JSON."""
    return {
        **fields(cost, "failed", "chunks", "texts", "cached", "to_embed", "tokens", "requests", "batch"),
        "pricePerMillionTokens": cost.price,
        "dollars": round(cost.dollars, 6) if cost.dollars is not None else None,
        "seconds": round(cost.seconds, 3),
    }


class Spending:
    """Cost of embedding documents from now on. Searches of other processes are not counted."""

    def __init__(self, health: HealthStore, agents: Sequence[AgentSettings]) -> None:
        self._health = health
        self._agents = {agent.id: agent for agent in agents}
        self._before = {agent: self._used(agent) for agent in self._agents}

    def of(self, agent: str) -> list[tuple[Usage, str]]:
        """Return an agent's usage of paid providers since then, each with a line for people."""
        spent = []
        for (provider, model), now in self._used(agent).items():
            before = self._before[agent].get((provider, model), Usage(provider, model))
            counts = {name: getattr(now, name) - getattr(before, name) for name in _COUNTS}
            usage = replace(now, **counts)
            if not usage.requests or provider in FREE_OF_CHARGE:
                continue
            spent.append(spent_line(self._agents[agent], usage))
        return spent

    def _used(self, agent: str) -> dict[tuple[str, str], Usage]:
        return {(usage.provider, usage.model): usage for usage in self._health.usage(agent, queries=False)}
