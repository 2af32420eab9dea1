"""Provider of an agent: the configured one, or the configured fallback that took over.

A worker lets the fallback take over for good reasons (`take_over`). The fallback stays until the settings or the key of
the first provider change. A file beside the generations records it, so that all processes agree on the provider and on
the index's identity. A takeover begins a new generation like any other change of provider.

`auto` takes the first provider that a process can have, which depends on that process's keys and packages. An index
moves up the order of `auto`, never down. Otherwise a shell without the daemon's key would rebuild the index with
another model, and the daemon would rebuild it again. A process that lacks the index's provider leaves the vectors to
processes that have it, and reports that.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TypeAlias

import structlog

from memory.embedding.providers.presets import BY_KEY, PRESETS
from memory.embedding.providers.provider import ProviderUnavailable
from memory.embedding.selection import NO_VECTORS, ProviderChoice, choose_provider, fallback_choice, made_like
from memory.index.fingerprint import embedding_of, name_in
from memory.index.generations import CURRENT, NEXT, Generations
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, MemorySettings, Settings

log = structlog.get_logger(__name__)

_FILE = "FALLBACK"

#: `GenerationWriter.set_note`.
SetNote: TypeAlias = Callable[[str, str | None], None]


@dataclass(frozen=True, slots=True)
class Takeover:
    """Record of a takeover: a digest of the settings, the first provider's account and name, the reason and the Unix
    time.

    `account` is None if the first provider could not be made, for example without its key.
    """

    settings: str
    account: str | None
    reason: str
    since: float
    provider: str = ""


def provider_of(settings: Settings, agent: AgentSettings, *, for_queries: bool = False) -> ProviderChoice:
    """Return the provider that an agent uses now. Cheap, and never raises, like `choose_provider`.

    With `for_queries`, return the provider of the answering generation, whatever is under construction.
    """
    generations = Generations.of(settings, agent.id)
    takeover = _noted(generations)
    first = _first(settings, agent, takeover, for_queries=for_queries)
    if takeover is None or not _holds(takeover, agent, first):
        return first
    fallback = fallback_choice(agent, settings.credentials)
    if fallback is None:
        return first
    fallback = as_indexed(fallback, generations)
    why = f"{agent.fallback} took over: {takeover.reason}"
    return replace(
        fallback,
        requested=first.requested,
        reason=why,
        error=None if fallback.error is None else f"{why}; and {fallback.error}",
        taken_over=why,
    )


def provider_for_queries(settings: Settings, agent: AgentSettings, chosen: ProviderChoice) -> ProviderChoice:
    """Return the provider whose vectors CURRENT holds, while an index for `chosen` is under construction.

    Return `chosen` if CURRENT is its own, if keywords alone were chosen, or if the index's provider is unavailable.
    """
    if chosen.provider is None:
        return chosen
    identity = next(_identities(Generations.of(settings, agent.id), [CURRENT]), None)
    if identity in {None, NO_VECTORS, chosen.provider.identity}:
        return chosen
    return made_like(str(identity), agent, settings.credentials) or chosen


def take_over(settings: Settings, agent: AgentSettings, *, reason: str, set_note: SetNote) -> bool:
    """Let the configured fallback take over; return True if it did. The owner of the indexes calls it.

    It does not if it is unavailable or has taken over already, or if this process merely lacks the index's key. The
    caller has the agent indexed with the new provider.
    """
    noted = _noted(Generations.of(settings, agent.id))
    first = _first(settings, agent, noted)
    if first.provider is None and (
        _asked_for(settings, agent).error is None or agent.provider in _in_use(settings, agent)
    ):
        # Other processes have the key that this one lacks: the provider works, and so does their index.
        return False
    fallback = fallback_choice(agent, settings.credentials)
    if fallback is None or fallback.error is not None or not settings.store.vector.enabled:
        return False
    if noted is not None and _holds(noted, agent, first):
        return False
    account = first.provider.account if first.provider is not None else None
    takeover = Takeover(_digest(agent), account, reason, since=time.time(), provider=first.name)
    set_note(_FILE, json.dumps(asdict(takeover)))
    log.warning("fallback_took_over", agent=agent.id, fallback=agent.fallback, reason=reason)
    return True


def fallback_problem(settings: Settings, agent: AgentSettings) -> str | None:
    """Return the reason why the configured fallback cannot take over; None if it can, or without one."""
    fallback = fallback_choice(agent, settings.credentials)
    return f"{agent.fallback} cannot take over: {fallback.error}" if fallback is not None and fallback.error else None


def forget_void_takeover(settings: Settings, agent: AgentSettings, *, set_note: SetNote) -> None:
    """Delete a record that no longer matches the settings or the key. The owner of the indexes calls it."""
    noted = _noted(Generations.of(settings, agent.id))
    first = _first(settings, agent, noted)
    if noted is not None and not _holds(noted, agent, first):
        set_note(_FILE, None)
        log.info("fallback_over", agent=agent.id, provider=first.name)


def takeover_token(settings: Settings, agent: AgentSettings) -> object:
    """Return a value that differs when the results of `provider_of` may differ. Costs a few `stat`s.

    It changes when a takeover begins or ends, and with the pointers CURRENT and NEXT.
    """
    generations = Generations.of(settings, agent.id)
    return [generations.token(name) for name in (_FILE, CURRENT, NEXT)]


def _first(
    settings: Settings, agent: AgentSettings, noted: Takeover | None, *, for_queries: bool = False
) -> ProviderChoice:
    """Return the provider that the settings name; none if this process merely lacks the index's provider."""
    first = _asked_for(settings, agent)
    if first.requested != "auto":
        return first
    in_use = _in_use(settings, agent, for_queries=for_queries)
    if noted is not None and noted.settings == _digest(agent):
        in_use = (*in_use, noted.provider)  # the provider before the takeover
    return without_stepping_down(first, agent, in_use)


def _asked_for(settings: Settings, agent: AgentSettings) -> ProviderChoice:
    choice = choose_provider(agent, settings.credentials, vectors_enabled=settings.store.vector.enabled)
    return as_indexed(choice, Generations.of(settings, agent.id))


def _in_use(settings: Settings, agent: AgentSettings, *, for_queries: bool = False) -> tuple[str, ...]:
    """Return the names of the providers of the agent's readable generations, NEXT first."""
    pointers = [CURRENT] if for_queries else [NEXT, CURRENT]
    return tuple(map(name_in, _identities(Generations.of(settings, agent.id), pointers)))


def _holds(takeover: Takeover, agent: AgentSettings, first: ProviderChoice) -> bool:
    if takeover.settings != _digest(agent):
        return False
    # A process without the first provider's key cannot compare the account.
    return first.provider is None or first.provider.account == takeover.account


def _digest(memory: MemorySettings) -> str:
    """Return a digest of the settings that choose the first provider and the fallback."""
    facts = [
        memory.provider,
        memory.fallback,
        memory.model,
        memory.remote.base_url,
        memory.output_dimensionality,
        memory.query_input_type,
        memory.document_input_type,
        memory.local.model_path,
    ]
    # Only if they are set, so that older records stay valid.
    facts += [prefix for prefix in (memory.query_prefix, memory.document_prefix) if prefix is not None]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _noted(generations: Generations) -> Takeover | None:
    try:
        raw = generations.note(_FILE)
        if raw is None:
            return None
        facts = json.loads(raw)
        account = facts["account"]
        return Takeover(
            settings=str(facts["settings"]),
            account=None if account is None else str(account),
            reason=str(facts["reason"]),
            since=float(facts["since"]),
            provider=str(facts.get("provider", "")),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("fallback_note_unreadable", error=str(error))
        return None


#: Order in which `auto` tries the providers.
ORDER = (*BY_KEY, "local", "none")


def as_indexed(choice: ProviderChoice, generations: Generations) -> ProviderChoice:
    """Return the choice with its `earlier` provider if the agent's index was made with it and is not rebuilt."""
    if choice.earlier is None or choice.provider is None:
        return choice
    made = list(_identities(generations, [NEXT, CURRENT]))
    if choice.earlier.identity not in made or choice.provider.identity in made:
        return choice
    return replace(choice, provider=choice.earlier, earlier=None, rebuilt=choice.provider)


def without_stepping_down(choice: ProviderChoice, memory: MemorySettings, in_use: Iterable[str]) -> ProviderChoice:
    """Return the choice, or none with an `error` if `auto` chose less than the index was made with."""
    if choice.requested != "auto" or choice.error is not None or choice.name not in ORDER:
        return choice
    if choice.name == "local" and memory.local.model_path is not None:
        return choice  # the settings name the model
    above = ORDER[: ORDER.index(choice.name)]
    better = next((name for name in in_use if name in above), None)
    if better is None:
        return choice
    key = PRESETS[better].key_name if better in PRESETS else None
    lacking = ProviderUnavailable(
        f"the index was made with {better}{f' ({key})' if key else ''}, which this process does not have "
        f"({choice.reason}): new chunks wait for their vectors until a process that has it runs",
        f'to have everything embedded anew instead, set provider = "{choice.name}"',
    )
    return ProviderChoice(None, choice.requested, "none", None, str(lacking), lacking=lacking)


def _identities(generations: Generations, pointers: Iterable[str]) -> Iterator[str]:
    """Yield the embedding identities of an agent's readable generations."""
    for pointer in pointers:
        with suppress(RecalldError):
            name = generations.next() if pointer == NEXT else generations.current()
            if name is not None:
                yield _embedding_of(generations, name)


def _embedding_of(generations: Generations, name: str) -> str:
    """Return the embedding identity of a generation. It never changes, and names are never reused."""
    known = (generations.folder, name)
    if known not in _known:
        reader = generations.open_named(name)
        if reader is None:
            return NO_VECTORS
        try:
            _known[known] = embedding_of(reader.meta("identity"))
        finally:
            reader.close()
    return _known[known]


#: Embedding identities of generations.
_known: dict[tuple[object, str], str] = {}
