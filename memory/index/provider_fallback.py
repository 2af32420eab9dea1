"""The provider that an agent really uses: the one its settings ask for, or the configured fallback that took over.

A fallback takes over once, for good reasons that a worker saw (`take_over`), and stays until the settings or the key
of the first provider change. It is noted in a file beside the agent's generations, so that every process agrees on the
provider and with it on the index's identity: a takeover is a new generation like any other change of provider.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from memory.embedding.selection import NO_VECTORS, ProviderChoice, choose_provider, fallback_choice, made_like
from memory.index.generations import CURRENT, NEXT
from memory.index.identity import as_indexed, embedding_in_use, providers_in_use, without_stepping_down
from memory.store.options import StoreOptions
from schemas.settings import AgentSettings, MemorySettings, Settings

log = structlog.get_logger(__name__)

_FILE = "FALLBACK"


@dataclass(frozen=True, slots=True)
class Takeover:
    """What is noted: for which settings (a digest) and which account of the first provider, why, and since when.

    `account` is None when the first provider could not even be made (a missing key, say). `provider` is its name.
    `since` is Unix time.
    """

    settings: str
    account: str | None
    reason: str
    since: float
    provider: str = ""


def provider_of(settings: Settings, agent: AgentSettings, *, for_queries: bool = False) -> ProviderChoice:
    """Return the provider that an agent uses now. Cheap, and never raises, like `choose_provider`.

    `for_queries`: the one for the generation that answers, whatever is under construction.
    """
    takeover = _noted(settings.indexes_path / agent.id)
    first = _first(settings, agent, takeover, for_queries=for_queries)
    if takeover is None or not _holds(takeover, agent, first):
        return first
    fallback = fallback_choice(agent, settings.credentials)
    if fallback is None:
        return first
    fallback = as_indexed(fallback, settings.indexes_path / agent.id, StoreOptions.of(settings.store))
    why = f"{agent.fallback} took over: {takeover.reason}"
    return replace(
        fallback,
        requested=first.requested,
        reason=why,
        error=None if fallback.error is None else f"{why}; and {fallback.error}",
        taken_over=why,
    )


def provider_for_queries(settings: Settings, agent: AgentSettings, chosen: ProviderChoice) -> ProviderChoice:
    """The provider whose vectors the answering index holds, while one for `chosen` is under construction.

    `chosen` itself where the index is its own, where keywords were chosen, and where what the index was made with
    cannot be had any more.
    """
    if chosen.provider is None:
        return chosen
    identity = embedding_in_use(settings.indexes_path / agent.id, StoreOptions.of(settings.store))
    if identity in {None, NO_VECTORS, chosen.provider.identity}:
        return chosen
    return made_like(str(identity), agent, settings.credentials) or chosen


def take_over(settings: Settings, agent: AgentSettings, *, reason: str) -> bool:
    """Let the configured fallback take over; False when there is none that can be had, or it did already, or this
    process merely lacks the key with which the index was made.

    The caller sees to it that the agent is indexed with the new provider.
    """
    folder = settings.indexes_path / agent.id
    noted = _noted(folder)
    first = _first(settings, agent, noted)
    if first.provider is None and (_asked_for(settings, agent).error is None or _is_in_use(settings, agent)):
        # Others have what this process lacks: the provider is well, and so is what they built or are building.
        return False
    fallback = fallback_choice(agent, settings.credentials)
    if fallback is None or fallback.error is not None or not settings.store.vector.enabled:
        return False
    if noted is not None and _holds(noted, agent, first):
        return False
    account = first.provider.account if first.provider is not None else None
    _note(folder, Takeover(_digest(agent), account, reason, since=time.time(), provider=first.name))
    if first.provider is None and _is_in_use(settings, agent):
        (folder / _FILE).unlink(missing_ok=True)  # somebody who has the key began to build since the look above
        return False
    log.warning("fallback_took_over", agent=agent.id, fallback=agent.fallback, reason=reason)
    return True


def fallback_problem(settings: Settings, agent: AgentSettings) -> str | None:
    """Why the configured fallback could not take over; None when it could, or when there is none."""
    fallback = fallback_choice(agent, settings.credentials)
    return f"{agent.fallback} cannot take over: {fallback.error}" if fallback is not None and fallback.error else None


def forget_void_takeover(settings: Settings, agent: AgentSettings) -> None:
    """Delete a note that the settings or the key have outdated; a worker does so, so that all processes agree."""
    folder = settings.indexes_path / agent.id
    noted = _noted(folder)
    first = _first(settings, agent, noted)
    if noted is not None and not _holds(noted, agent, first):
        with suppress(OSError):
            (folder / _FILE).unlink()
        log.info("fallback_over", agent=agent.id, provider=first.name)


def taken_over_at(settings: Settings, agent: AgentSettings) -> float:
    """Unix time at which a fallback took over, 0 while none has."""
    noted = _noted(settings.indexes_path / agent.id)
    return noted.since if noted is not None else 0.0


def takeover_token(settings: Settings, agent: AgentSettings) -> object:
    """Differs when what `provider_of` and `take_over` say may differ: a takeover began or ended, or another generation
    answers or is under construction. A few `stat`s.
    """
    tokens = [_token(settings.indexes_path / agent.id / name) for name in (_FILE, CURRENT, NEXT)]
    return tokens if any(tokens) else None


def _token(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _first(
    settings: Settings, agent: AgentSettings, noted: Takeover | None, *, for_queries: bool = False
) -> ProviderChoice:
    """The provider that the settings ask for; none where this process merely lacks what the index was made with."""
    first = _asked_for(settings, agent)
    if first.requested != "auto":
        return first
    in_use = _in_use(settings, agent, for_queries=for_queries)
    if noted is not None and noted.settings == _digest(agent):
        in_use = (*in_use, noted.provider)  # what it took over from
    return without_stepping_down(first, agent, in_use)


def _asked_for(settings: Settings, agent: AgentSettings) -> ProviderChoice:
    choice = choose_provider(agent, settings.credentials, vectors_enabled=settings.store.vector.enabled)
    return as_indexed(choice, settings.indexes_path / agent.id, StoreOptions.of(settings.store))


def _is_in_use(settings: Settings, agent: AgentSettings) -> bool:
    return agent.provider in _in_use(settings, agent)


def _in_use(settings: Settings, agent: AgentSettings, *, for_queries: bool = False) -> tuple[str, ...]:
    options = StoreOptions.of(settings.store)
    return providers_in_use(settings.indexes_path / agent.id, options, under_construction=not for_queries)


def _holds(takeover: Takeover, agent: AgentSettings, first: ProviderChoice) -> bool:
    if takeover.settings != _digest(agent):
        return False
    # A process that does not know the first provider's key cannot tell whether it is still the same.
    return first.provider is None or first.provider.account == takeover.account


def _digest(memory: MemorySettings) -> str:
    """The settings that say which provider is asked first and which one takes over."""
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
    # Only where they are set, so that older notes stay as they are.
    facts += [prefix for prefix in (memory.query_prefix, memory.document_prefix) if prefix is not None]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _noted(folder: Path) -> Takeover | None:
    try:
        facts = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        account = facts["account"]
        return Takeover(
            settings=str(facts["settings"]),
            account=None if account is None else str(account),
            reason=str(facts["reason"]),
            since=float(facts["since"]),
            provider=str(facts.get("provider", "")),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("fallback_note_unreadable", folder=str(folder), error=str(error))
        return None


def _note(folder: Path, takeover: Takeover) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "settings": takeover.settings,
        "account": takeover.account,
        "reason": takeover.reason,
        "since": takeover.since,
        "provider": takeover.provider,
    }
    draft = folder / f"{_FILE}.{secrets.token_hex(4)}.tmp"
    with draft.open("w", encoding="utf-8") as file:
        json.dump(facts, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / _FILE)
