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

from memory.embedding.selection import ProviderChoice, choose_provider, fallback_choice
from schemas.settings import AgentSettings, MemorySettings, Settings

log = structlog.get_logger(__name__)

_FILE = "FALLBACK"


@dataclass(frozen=True, slots=True)
class Takeover:
    """What is noted: for which settings (a digest) and which account of the first provider, why, and since when.

    `account` is None when the first provider could not even be made (a missing key, say). `since` is Unix time.
    """

    settings: str
    account: str | None
    reason: str
    since: float


def provider_of(settings: Settings, agent: AgentSettings) -> ProviderChoice:
    """Return the provider that an agent uses now. Cheap, and never raises, like `choose_provider`."""
    first = choose_provider(agent, settings.credentials, vectors_enabled=settings.store.vector.enabled)
    takeover = _noted(settings.indexes_path / agent.id)
    if takeover is None or not _holds(takeover, agent, first):
        return first
    fallback = fallback_choice(agent, settings.credentials)
    if fallback is None:
        return first
    why = f"{agent.fallback} took over: {takeover.reason}"
    return replace(
        fallback,
        requested=first.requested,
        reason=why,
        error=None if fallback.error is None else f"{why}; and {fallback.error}",
        taken_over=why,
    )


def take_over(settings: Settings, agent: AgentSettings, *, reason: str) -> bool:
    """Let the configured fallback take over; False when there is none that can be had, or it did already.

    The caller sees to it that the agent is indexed with the new provider.
    """
    first = choose_provider(agent, settings.credentials, vectors_enabled=settings.store.vector.enabled)
    folder = settings.indexes_path / agent.id
    noted = _noted(folder)
    fallback = fallback_choice(agent, settings.credentials)
    if fallback is None or fallback.error is not None or not settings.store.vector.enabled:
        return False
    if noted is not None and _holds(noted, agent, first):
        return False
    account = first.provider.account if first.provider is not None else None
    _note(folder, Takeover(settings=_digest(agent), account=account, reason=reason, since=time.time()))
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
    first = choose_provider(agent, settings.credentials, vectors_enabled=settings.store.vector.enabled)
    if noted is not None and not _holds(noted, agent, first):
        with suppress(OSError):
            (folder / _FILE).unlink()
        log.info("fallback_over", agent=agent.id, provider=first.name)


def takeover_token(settings: Settings, agent: AgentSettings) -> object:
    """Differs when a takeover began or ended. One `stat`."""
    try:
        stat = (settings.indexes_path / agent.id / _FILE).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


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
    }
    draft = folder / f"{_FILE}.{secrets.token_hex(4)}.tmp"
    with draft.open("w", encoding="utf-8") as file:
        json.dump(facts, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / _FILE)
