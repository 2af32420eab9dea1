"""Vectors of an index: time until all are there, reasons for their absence, price of a rebuild."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

from memory.embedding.breaker import Breaker, waste_path
from memory.embedding.consent import HeldTexts
from memory.embedding.prices import price_of
from memory.embedding.providers.local import LocalProvider
from memory.embedding.providers.provider import EmbeddingProvider, ProviderUnavailable
from memory.embedding.providers.remote import RemoteProvider
from memory.index.generations import Generations
from memory.status.condition_texts import counted
from schemas.conditions import Condition, ConditionCode, Param
from schemas.errors import RecalldError
from schemas.ports import VectorProgress
from schemas.settings import AgentSettings, MemorySettings
from schemas.status import IndexCounts, IndexState, VectorState

#: Longer waits come with advice.
LONG_SECONDS = 600.0

#: Batch jobs that no worker looked at for so long are no reason to wait.
LOOKED_AFTER_SECONDS = 900.0

#: Seconds without a new vector or text after which a measured rate is out of date. A round is shorter.
LATELY_SECONDS = 30.0

#: Seconds that the next vectors may take though there is less to do: one request and its round.
ROUND_SECONDS = 5.0

#: Vectors that wait while none came in for so long are stuck.
STUCK_SECONDS = 120.0


def vector_progress(
    index: IndexState,
    progress: VectorProgress,
    agent: AgentSettings,
    provider: EmbeddingProvider | None,
    now: float,
    *,
    in_batch_jobs: int = 0,
    held_back: bool = False,
) -> tuple[VectorState, float | None]:
    """Return the progress, and the Unix time since which vectors wait while none comes in; None while some come in.

    Before the first measurement, the provider's expected rate gives the estimate, not the rate. While texts are
    `in_batch_jobs` there is no estimate, and nothing is stuck. Under a rate limit of the settings, only a measured rate
    gives an estimate. A measurement is void while requests are `held_back`, when no vector came in lately, or when its
    estimate has passed: then there is neither a rate nor an estimate.
    """
    if not index.vectors_pending:
        return VectorState(rate=progress.rate or None), None
    fresh = max(progress.at, index.last_commit_at or 0.0)
    lately = now - fresh <= LATELY_SECONDS
    measured = progress.rate or None if lately else None
    expected = provider.limits.chunks_per_second if provider is not None else None
    limited = agent.remote.requests_per_minute is not None or agent.remote.tokens_per_minute is not None
    rate = measured or (None if limited else expected)
    foreseeable = provider is not None and not in_batch_jobs and not held_back and lately
    eta = index.vectors_pending / rate if rate and foreseeable else None
    overdue = rate is not None and now - fresh > max(index.vectors_pending / rate, ROUND_SECONDS)
    if held_back or overdue:
        measured = eta = None
    # Without a provider nothing waits: keywords only was chosen, or status gives the reason.
    stuck = provider is not None and not in_batch_jobs and now - fresh > STUCK_SECONDS
    return (
        VectorState(
            rate=round(measured, 3) if measured is not None else None,
            eta_seconds=round(eta, 1) if eta is not None else None,
            advice=_advice(agent, provider) if provider and (eta or 0.0) > LONG_SECONDS and not limited else None,
            in_batch_jobs=in_batch_jobs,
        ),
        fresh if stuck else None,
    )


def _advice(agent: AgentSettings, provider: EmbeddingProvider) -> str:
    faster = ["raise remote.concurrency, or provider = local needs no network"]
    if provider.name == "local":
        faster = ["set OPENAI_API_KEY or another remote provider"]
        if agent.local.model_path is not None:
            faster.insert(0, "leave local.model_path unset for the bundled multilingual model, which is usually faster")
    return f"Keyword search does not wait for them. Faster: {'; or '.join(faster)}."


def no_vectors(agent: str, lacking: ProviderUnavailable | None, index: IndexCounts) -> Condition | None:
    """Return the condition that an agent is `lacking` its provider, with the counts of its index; None with one."""
    if lacking is None:
        return None
    documents = counted(index.files, "document") if index.files else "new documents"
    if index.vectors_ready:
        documents = counted(index.vectors_pending, "chunk") if index.vectors_pending else "new documents"
    params = {"documents": documents, "reason": lacking.reason, "remedy": lacking.remedy}
    return Condition(ConditionCode.VECTORS_UNAVAILABLE, agent, params=params)


def held_vectors(
    agent: AgentSettings, provider: EmbeddingProvider | None, generations: Generations, *, version: int | None = None
) -> Condition | None:
    """Return the texts that wait for a consent in the generation that workers write, with their cost; None without any.

    None as well if workers have not looked at this `version` of the consents yet. It is no trouble.
    """
    look = None
    with suppress(RecalldError):  # status says so elsewhere
        name = generations.next() or generations.current()
        if name is not None and (reader := generations.open_named(name)) is not None:
            with closing(reader):
                look = HeldTexts.of(reader)
    if look is None or provider is None or version not in {None, look.consents}:
        return None
    params: dict[str, Param] = {"texts": look.texts, "tokens": look.tokens, "cost": "at a price that is not known"}
    if (price := price_of(agent, provider.name, provider.model)) is not None:
        dollars = price * look.tokens / 1e6
        params |= {"dollars": round(dollars, 6), "cost": f"${max(0.01, dollars):,.2f}"}
    return Condition(ConditionCode.VECTORS_HELD, agent.id, params=params)


def unread_scripts(agent: str, index: IndexState) -> Condition | None:
    """Return how many documents are in scripts that the model does not read; None without any. It is no trouble."""
    if not index.unread_scripts:
        return None
    params: dict[str, Param] = {
        "documents": sum(index.unread_scripts.values()),
        "scripts": ", ".join(index.unread_scripts),
    }
    return Condition(ConditionCode.SCRIPTS_UNREAD, agent, params=params)


def missing_gpu(agent: str, provider: EmbeddingProvider | None) -> Condition | None:
    """Return the condition that a model runs on the processor instead of the GPU of the settings. It is no trouble."""
    if isinstance(provider, LocalProvider) and provider.lacks_gpu():
        return Condition(ConditionCode.GPU_MISSING, agent, params={"package": provider.package})
    return None


def useless_answers(
    home: Path, memory: MemorySettings, provider: EmbeddingProvider | None, *, chunks: int
) -> Condition | None:
    """Return the useless answers of a provider that is stopped or on trial, with their cost; None otherwise.

    For another width, the params hold the price of a rebuild that embeds all chunks again.
    """
    if provider is None or (waste := Breaker(waste_path(home, provider)).waste()) is None:
        return None
    params: dict[str, Param] = {
        "error": waste.error,
        "billed": waste.texts,
        "tokens": waste.tokens,
        "until": waste.until,
    }
    width_is_set = isinstance(provider, RemoteProvider) and provider.endpoint.dimensions is not None
    if not waste.got or width_is_set:
        return Condition(ConditionCode.PROVIDER_USELESS, provider.name, waste.since, params)
    price = price_of(memory, provider.name, provider.model)
    dollars = (price or 0.0) * chunks * memory.chunking.tokens / 1e6
    cost = "free of charge" if price == 0 else f"at most ${max(0.01, dollars):,.2f}" if price else "price unknown"
    minutes = max(1, round(chunks / provider.limits.chunks_per_second / 60))
    params |= {"got": waste.got, "expected": waste.expected}
    params |= {"texts": counted(chunks, "text"), "cost": cost, "minutes": minutes}
    return Condition(ConditionCode.DIMENSIONS_CHANGED, provider.name, waste.since, params)
