"""Cost of embedding: estimated without indexing (`--dry-run`), and counted while a command runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from memory.documents.agent_files import AgentFiles
from memory.documents.notes import every_note
from memory.embedding.batch_jobs.batch_ledger import BatchLedger
from memory.embedding.batch_jobs.ledger_reader import has_ledger
from memory.embedding.cache_reader import EmbeddingCacheReader
from memory.index.estimate import Estimate, Sample, estimate, estimate_of
from memory.status.condition_texts import counted, duration
from memory.transcripts.folding import cut_sentence
from recalld.invocation import Invocation
from recalld.runs.outcome import spent_line
from recalld.runs.status import FREE_OF_CHARGE, dollars, size
from recalld.settings.load import check_workspace
from recalld.settings.workspaces import EVERY_NOTE
from recalld.terminal_text import fields, printable_json, reading
from recalld.wiring import AgentIndex, compare
from schemas.agents import Scope
from schemas.documents import DocumentKey
from schemas.errors import UserError
from schemas.ports import Usage
from schemas.settings import AgentSettings, Settings
from workers.batch_jobs import FEWEST_TEXTS
from workers.health.health_store import HealthStore

#: Notes of a whole folder that are taken without --yes, and bounds of their count.
MOST_NOTES, _MOST_COUNTED, _MOST_FOLDERS = 10_000, 50_000, 20_000

#: Fields of `Usage` that only grow.
_COUNTS = ("requests", "failed", "inputs", "tokens", "batched")

EstimateFor = Callable[[AgentSettings, AgentFiles, Iterable[DocumentKey] | Sample], Estimate]


def run_estimate(invocation: Invocation, *, fresh: bool, as_json: bool) -> int:
    """Print the cost of indexing the agents, with `fresh` of building their indexes anew. Return the exit code."""
    settings, agents = invocation.settings, invocation.agents()
    for agent in settings.agents:
        if agent in agents:
            check_workspace(agent)
    costs: list[Estimate] = []
    bodies = []
    estimate_for = estimates(settings, fresh=fresh)
    for agent in agents:
        files = AgentFiles.of(settings, agent)
        documents = files.scan().documents if fresh else compare(settings, agent, records_folders=False).documents
        cost = estimate_for(agent, files, reading(documents))
        counts = fields(cost, "provider", "model", "documents", "vanished")
        costs.append(cost)
        bodies.append({"agent": agent.id, **counts, **cost_body(cost)})
        if not as_json:
            click.echo(f"{agent.id}: {_sentence(cost)}")
    total = _total(costs)
    if as_json:
        sums = {**fields(total, "documents", "vanished"), **cost_body(total)}
        click.echo(printable_json({"ok": True, "dryRun": True, "agents": bodies, "total": sums}))
    elif len(costs) > 1:
        click.echo(f"all {len(costs)} agents: {_sentence(total)}")
    return 0


def confirm_workspace(invocation: Invocation) -> None:
    """Check that the notes that --workspace takes for the first time are few enough, or that the call has --yes.

    Raises:
        UserError: with their number and cost.
    """
    chosen = invocation.loaded.workspace
    if chosen is not None and chosen.is_new and not invocation.yes:
        confirm_folder(invocation.settings, invocation.settings.agent(chosen.agent))


def confirm_folder(settings: Settings, agent: AgentSettings) -> None:
    """Check that a workspace that is a memory as a whole is not too large to be meant. Raise like `confirm_workspace`.

    Its first files are counted, not read.
    """
    if tuple(agent.extra_paths) != EVERY_NOTE:
        return
    folder, notes = agent.workspace.resolve(), every_note(agent, most=_MOST_COUNTED, most_folders=_MOST_FOLDERS)
    place = {Path("/"): "the root of the disk", Path.home().resolve(): "your home folder"}.get(folder)
    if place is None and len(notes) <= MOST_NOTES:
        return
    total = sum(note.size for note in notes)
    tokens = total // 4  # bytes, in English notes
    texts = max(len(notes), tokens // agent.chunking.tokens)
    cost = estimate_of(AgentIndex(settings, agent).choice, agent, texts=texts, tokens=tokens)
    raise UserError(
        f"{agent.workspace}{f' is {place} and' if place else ''} holds at least {counted(len(notes), '.md file')} "
        f"({size(total)}): {cost_sentence(cost)}; name a folder further down, or take all of it with --yes",
        exit_code=2,
    )


def estimates(settings: Settings, *, fresh: bool = False) -> EstimateFor:
    """Return the function that estimates documents of an agent, or a sample of them.

    Texts in batch jobs are paid for, and a text of several agents is counted once.
    """
    with_cache = settings.cache.enabled
    #: Tenant -> (provider identity, text hash) pairs that are paid for.
    bought: dict[str, set[tuple[str, str]]] = {}

    def estimate_for(agent: AgentSettings, files: AgentFiles, documents: Iterable[DocumentKey] | Sample) -> Estimate:
        tenant = Scope.of(agent.id).tenant
        if tenant not in bought:
            bought[tenant] = set()
            if with_cache and has_ledger(settings):
                with BatchLedger.of(settings, tenant) as ledger:
                    bought[tenant] = ledger.everything()
        return estimate(
            settings,
            agent,
            () if isinstance(documents, Sample) else documents,
            sample=documents if isinstance(documents, Sample) else None,
            files=files,
            cache=EmbeddingCacheReader.of(settings, tenant) if with_cache else None,
            fresh=fresh,
            bought=bought[tenant] if with_cache else None,
            batch_from=FEWEST_TEXTS if with_cache else None,
        )

    return estimate_for


def _total(costs: Sequence[Estimate]) -> Estimate:
    """Return the sums of estimates. The price is None if they differ, the dollars are None if a price is unknown."""
    paying = [cost for cost in costs if cost.provider != "none"] or [*costs, Estimate()]
    numbers = [name for name, kind in Estimate.__annotations__.items() if kind == "int" and name != "dimensions"]
    prices, seconds = {cost.price for cost in paying}, [cost.seconds for cost in costs]
    return replace(
        min(paying, key=lambda cost: cost.dollars is not None),
        **{name: sum(getattr(cost, name) for cost in costs) for name in numbers},
        batch=any(cost.batch for cost in paying),
        price=prices.pop() if len(prices) == 1 else None,
        dollars=None if None in {cost.dollars for cost in paying} else sum(cost.dollars or 0.0 for cost in paying),
        seconds=None if None in seconds else sum(each or 0.0 for each in seconds),
    )


def _sentence(cost: Estimate) -> str:
    parts = [
        f"{counted(cost.documents, 'document')} changed",
        f"{counted(cost.vanished, 'document')} to forget" if cost.vanished else "",
        f"{counted(cost.failed, 'document')} cannot be read" if cost.failed else "",
        counted(cost.chunks, "chunk"),
    ]
    return f"{', '.join(filter(None, parts))}; {cost_sentence(cost)}"


def cost_sentence(cost: Estimate) -> str:
    """Return the texts to embed and their cost, and the text that is left out, in a sentence."""
    cut = cut_sentence(cost.cut_messages, cost.cut_characters)
    if cost.provider == "none":
        return "; ".join(filter(None, [f"{cost.reason or 'keywords only'}: nothing to pay", cut]))
    cached = [*filter(None, [f"{cost.cached:,} cached" if cost.cached else "", cut])]
    if not cost.to_embed:
        return ", ".join([*cached, "nothing to embed, nothing to pay"])
    most = cost.at_most or 0
    at_most = f" ({tokens_text(most)} at most)" if most > cost.tokens else " at most" if most else ""
    seconds = f"about {duration(max(1.0, cost.seconds))}" if cost.seconds is not None else ""
    parts = [
        *cached,
        f"{counted(cost.to_embed, 'text')} to embed",
        tokens_text(cost.tokens) + at_most,
        f"about {counted(cost.requests, 'request')}",
        _money(cost),
        "within hours" if cost.batch else seconds,
        f"{size(cost.disk)} on the disk, {size(cost.memory)} in the memory of searches",
    ]
    return ", ".join(filter(None, parts))


def tokens_text(tokens: int) -> str:
    """Return a number of tokens for people."""
    return f"{tokens / 1e6:.1f} M tokens" if tokens >= 1_000_000 else f"{tokens:,} tokens"


def _money(cost: Estimate) -> str:
    if cost.dollars is None:
        return f"at a price that is not known for {cost.model} (remote.price_per_million_tokens says it)"
    if not cost.price:
        return "free of charge" if not cost.dollars else dollars(cost.dollars)
    how = " through its Batch API" if cost.batch else ""
    return f"{dollars(cost.dollars)} ({cost.model}{how} at ${cost.price:g} a million tokens)"


def cost_body(cost: Estimate) -> dict[str, Any]:
    """Return chunks and texts to embed, and their cost, as JSON."""
    return {
        **fields(cost, "failed", "chunks", "texts", "cached", "to_embed", "tokens", "requests", "batch"),
        **fields(cost, "cut_messages", "cut_characters"),
        "pricePerMillionTokens": cost.price,
        "dollars": round(cost.dollars, 6) if cost.dollars is not None else None,
        "seconds": round(cost.seconds, 3) if cost.seconds is not None else None,
        **fields(cost, "disk", "memory"),
        **({"tokensAtMost": cost.at_most, "programs": cost.programs} if cost.at_most is not None else {}),
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
