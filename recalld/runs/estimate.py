"""Cost of embedding: estimated without indexing (`--dry-run`), and counted while a command runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from datetime import date
from typing import Any

import click

from memory.documents.agent_files import AgentFiles, Scan, priority
from memory.embedding.batch_jobs.batch_ledger import BatchLedger, ledger_path
from memory.embedding.cache import EmbeddingCache
from memory.embedding.providers.presets import price_of
from memory.embedding.selection import ProviderChoice
from memory.index.estimate import Estimate, estimate
from memory.index.provider_fallback import provider_of
from memory.status.condition_texts import counted, duration
from recalld.invocation import Invocation
from recalld.runs.status import FREE_OF_CHARGE, amount, dollars
from recalld.settings.load import check_workspace
from recalld.terminal_text import printable_json
from recalld.wiring import generations_of, indexed_by
from schemas.documents import DocumentKey
from schemas.ports import Usage
from schemas.settings import AgentSettings, Settings
from workers.batch_jobs import FEWEST_TEXTS
from workers.health.health_store import HealthStore


def run_estimate(invocation: Invocation, *, fresh: bool, as_json: bool) -> int:
    """Print what indexing the agents (with `fresh`: building their indexes anew) would cost. Return the exit code."""
    settings, agents = invocation.settings, invocation.agents()
    for agent in agents:
        check_workspace(agent)
    bodies = []
    with open_cache(settings) as cache:
        bought = texts_in_jobs(settings) if settings.cache.enabled else None
        for agent in agents:
            choice = provider_of(settings, agent)
            choice = choice.for_rebuild() if fresh else choice
            try:
                found = _estimate(settings, agent, choice, cache, bought, fresh=fresh)
            finally:
                if choice.provider is not None:
                    choice.provider.close()
            bodies.append(_body(agent, choice, found))
            if not as_json:
                click.echo(f"{agent.id}: {estimate_sentence(choice, found)}")
    if as_json:
        click.echo(printable_json({"ok": True, "dryRun": True, "agents": bodies}))
    return 0


def estimate_sentence(choice: ProviderChoice, found: Estimate) -> str:
    """Return the estimate in one sentence for people."""
    changed = [f"{counted(found.documents, 'document')} changed"]
    changed += [f"{counted(found.vanished, 'document')} to forget"] if found.vanished else []
    changed += [f"{counted(found.failed, 'document')} cannot be read"] if found.failed else []
    changed.append(counted(found.chunks, "chunk"))
    return f"{', '.join(changed)}; {cost_sentence(choice, found)}"


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
        f"{_rounded(found.tokens)} tokens",
        f"about {counted(found.requests, 'request')}",
        _money(choice, found),
        "within hours" if found.batch else f"about {duration(max(1.0, found.seconds))}",
    ]
    return ", ".join(parts)


def _estimate(
    settings: Settings,
    agent: AgentSettings,
    choice: ProviderChoice,
    cache: EmbeddingCache | None,
    bought: set[tuple[str, str]] | None,
    *,
    fresh: bool,
) -> Estimate:
    files = AgentFiles.of(settings, agent)
    scan = files.scan()
    today = date.today()  # the names of notes have local days
    documents = sorted(scan.documents, key=lambda key: priority(key, today=today))
    if not fresh:
        documents += _absent(settings, agent, files, scan)
    return estimate(
        agent,
        documents,
        files=files,
        generations=generations_of(settings, agent),
        choice=choice,
        cache=cache,
        fresh=fresh,
        bought=bought,
        batch_from=FEWEST_TEXTS if settings.cache.enabled else None,
    )


def _absent(settings: Settings, agent: AgentSettings, files: AgentFiles, scan: Scan) -> list[DocumentKey]:
    """Return the documents that the index knows and the disk has not, where the disk could be listed."""
    reader = indexed_by(settings)(agent)
    if reader is None:
        return []
    with closing(reader):
        known = [file.key for file in reader.files()]
        absent = [key for key in known if key not in scan.documents and files.forgets(key, reader)]
    return [key for key in absent if not scan.hides(files.path_of(key))]


def texts_in_jobs(settings: Settings) -> set[tuple[str, str]]:
    """Return what is in batch jobs and so paid for, as (provider identity, text hash)."""
    path = ledger_path(settings.home)
    if not path.is_file():
        return set()
    with BatchLedger(path) as ledger:
        return ledger.everything()


@contextmanager
def open_cache(settings: Settings) -> Iterator[EmbeddingCache | None]:
    """Open the cache for the block if there is one; none is made."""
    path = settings.home / "cache" / "embeddings.sqlite"
    if not settings.cache.enabled or not path.is_file():
        yield None
        return
    cache = EmbeddingCache(path)
    try:
        yield cache
    finally:
        cache.close()


def _body(agent: AgentSettings, choice: ProviderChoice, found: Estimate) -> dict[str, Any]:
    return {
        "agent": agent.id,
        "provider": choice.name,
        "model": choice.provider.model if choice.provider is not None else None,
        "documents": found.documents,
        "vanished": found.vanished,
        "failed": found.failed,
        "chunks": found.chunks,
        **cost_body(found),
    }


def cost_body(found: Estimate) -> dict[str, Any]:
    """Return the texts to embed and their cost, as JSON."""
    return {
        "texts": found.texts,
        "cached": found.cached,
        "toEmbed": found.to_embed,
        "tokens": found.tokens,
        "requests": found.requests,
        "batch": found.batch,
        "pricePerMillionTokens": found.price,
        "dollars": round(found.dollars, 6) if found.dollars is not None else None,
        "seconds": round(found.seconds, 3),
    }


def _money(choice: ProviderChoice, found: Estimate) -> str:
    model = choice.provider.model if choice.provider is not None else choice.name
    if found.dollars is None or found.price is None:
        return f"at a price that is not known for {model} (remote.price_per_million_tokens says it)"
    if found.price == 0:
        return "free of charge"
    amount = f"about ${found.dollars:,.2f}" if found.dollars >= 0.01 else "less than $0.01"
    how = " through its Batch API" if found.batch else ""
    return f"{amount} ({model}{how} at ${found.price:g} a million tokens)"


def _rounded(number: int) -> str:
    return f"{number / 1e6:.1f} M" if number >= 1_000_000 else f"{number:,}"


class Spending:
    """Cost of embedding documents from now on. Searches of other processes are not counted."""

    def __init__(self, board: HealthStore, agents: Sequence[AgentSettings]) -> None:
        self._board = board
        self._agents = {agent.id: agent for agent in agents}
        self._before = {
            (agent.id, usage.provider, usage.model): usage
            for agent in agents
            for usage in board.indexing_usage(agent.id)
        }

    def of(self, agent: str) -> list[Usage]:
        """Return the usage of one agent since then, by provider and model, without what is free of charge."""
        return [usage for usage in self.all_of(agent) if usage.requests and usage.provider not in FREE_OF_CHARGE]

    def all_of(self, agent: str) -> list[Usage]:
        """Return the usage of one agent since then, free of charge or not."""
        return [self._since(agent, usage) for usage in self._board.indexing_usage(agent)]

    def sentence(self, agent: str, usage: Usage) -> str:
        """Return one line for a person."""
        text = f"{usage.provider} {usage.model}: {usage.requests:,} request{'s' if usage.requests != 1 else ''}"
        if usage.failed:
            text += f" ({usage.failed:,} failed)"
        text += f", {amount(usage.tokens)} tokens"
        price = price_of(self._agents[agent], usage.provider, usage.model)
        return f"{text}, {dollars(price * usage.tokens / 1e6)}" if price and usage.tokens else text

    def told(self) -> dict[str, list[tuple[Usage, str]]]:
        """Return the usage of each agent, each with its line for a person."""
        return {agent: [(usage, self.sentence(agent, usage)) for usage in self.of(agent)] for agent in self._agents}

    def _since(self, agent: str, usage: Usage) -> Usage:
        before = self._before.get((agent, usage.provider, usage.model))
        if before is None:
            return usage
        counts = [field.name for field in fields(Usage) if field.name not in {"provider", "model"}]
        return replace(usage, **{name: getattr(usage, name) - getattr(before, name) for name in counts})
