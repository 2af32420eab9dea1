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
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import structlog

from memory.embedding.providers.presets import BY_KEY, PRESETS
from memory.embedding.selection import NO_VECTORS, Lacking, ProviderChoice, choose_provider, fallback_choice, made_like
from memory.index.fingerprint import embedding_of, name_in
from memory.index.generations import CURRENT, NEXT, Generations
from memory.store.options import StoreOptions
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, MemorySettings, Settings

log = structlog.get_logger(__name__)

_FILE = "FALLBACK"


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
    """Return the provider whose vectors CURRENT holds, while an index for `chosen` is under construction.

    Return `chosen` if CURRENT is its own, if keywords alone were chosen, or if the index's provider is unavailable.
    """
    if chosen.provider is None:
        return chosen
    identity = embedding_in_use(settings.indexes_path / agent.id, StoreOptions.of(settings.store))
    if identity in {None, NO_VECTORS, chosen.provider.identity}:
        return chosen
    return made_like(str(identity), agent, settings.credentials) or chosen


def take_over(settings: Settings, agent: AgentSettings, *, reason: str) -> bool:
    """Let the configured fallback take over; return True if it did.

    It does not if it is unavailable or has taken over already, or if this process merely lacks the index's key. The
    caller has the agent indexed with the new provider.
    """
    folder = settings.indexes_path / agent.id
    noted = _noted(folder)
    first = _first(settings, agent, noted)
    if first.provider is None and (_asked_for(settings, agent).error is None or _is_in_use(settings, agent)):
        # Other processes have the key that this one lacks: the provider works, and so does their index.
        return False
    fallback = fallback_choice(agent, settings.credentials)
    if fallback is None or fallback.error is not None or not settings.store.vector.enabled:
        return False
    if noted is not None and _holds(noted, agent, first):
        return False
    account = first.provider.account if first.provider is not None else None
    _note(folder, Takeover(_digest(agent), account, reason, since=time.time(), provider=first.name))
    if first.provider is None and _is_in_use(settings, agent):
        (folder / _FILE).unlink(missing_ok=True)  # a process with the key has begun to build meanwhile
        return False
    log.warning("fallback_took_over", agent=agent.id, fallback=agent.fallback, reason=reason)
    return True


def fallback_problem(settings: Settings, agent: AgentSettings) -> str | None:
    """Return the reason why the configured fallback cannot take over; None if it can, or without one."""
    fallback = fallback_choice(agent, settings.credentials)
    return f"{agent.fallback} cannot take over: {fallback.error}" if fallback is not None and fallback.error else None


def forget_void_takeover(settings: Settings, agent: AgentSettings) -> None:
    """Delete a record that no longer matches the settings or the key. Called by workers only."""
    folder = settings.indexes_path / agent.id
    noted = _noted(folder)
    first = _first(settings, agent, noted)
    if noted is not None and not _holds(noted, agent, first):
        with suppress(OSError):
            (folder / _FILE).unlink()
        log.info("fallback_over", agent=agent.id, provider=first.name)


def taken_over_at(settings: Settings, agent: AgentSettings) -> float:
    """Return the Unix time at which a fallback took over, 0 without a takeover."""
    noted = _noted(settings.indexes_path / agent.id)
    return noted.since if noted is not None else 0.0


def takeover_token(settings: Settings, agent: AgentSettings) -> object:
    """Return a value that differs when the results of `provider_of` and `take_over` may differ. Costs a few `stat`s.

    It changes when a takeover begins or ends, and with the pointers CURRENT and NEXT.
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
    return as_indexed(choice, settings.indexes_path / agent.id, StoreOptions.of(settings.store))


def _is_in_use(settings: Settings, agent: AgentSettings) -> bool:
    return agent.provider in _in_use(settings, agent)


def _in_use(settings: Settings, agent: AgentSettings, *, for_queries: bool = False) -> tuple[str, ...]:
    options = StoreOptions.of(settings.store)
    return providers_in_use(settings.indexes_path / agent.id, options, under_construction=not for_queries)


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
    draft = folder / f"{_FILE}.{secrets.token_hex(4)}.tmp"
    with draft.open("w", encoding="utf-8") as file:
        json.dump(asdict(takeover), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / _FILE)


#: Order in which `auto` tries the providers.
ORDER = (*BY_KEY, "local", "none")


def as_indexed(choice: ProviderChoice, folder: Path, options: StoreOptions) -> ProviderChoice:
    """Return the choice with its `earlier` provider if the agent's index was made with it and is not rebuilt."""
    if choice.earlier is None or choice.provider is None:
        return choice
    made = list(_identities(folder, options, [NEXT, CURRENT]))
    if choice.earlier.identity not in made or choice.provider.identity in made:
        return choice
    return replace(choice, provider=choice.earlier, earlier=None, rebuilt=choice.provider)


def providers_in_use(folder: Path, options: StoreOptions, *, under_construction: bool) -> tuple[str, ...]:
    """Return the names of the providers of an agent's readable generations, NEXT first if `under_construction`."""
    return tuple(map(name_in, _identities(folder, options, [NEXT, CURRENT] if under_construction else [CURRENT])))


def embedding_in_use(folder: Path, options: StoreOptions) -> str | None:
    """Return the embedding identity of CURRENT; None if there is none, or if it cannot be read."""
    return next(_identities(folder, options, [CURRENT]), None)


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
    lacking = Lacking(
        f"the index was made with {better}{f' ({key})' if key else ''}, which this process does not have "
        f"({choice.reason}): new chunks wait for their vectors until a process that has it runs",
        f'to have everything embedded anew instead, set provider = "{choice.name}"',
    )
    return ProviderChoice(None, choice.requested, "none", None, str(lacking), lacking=lacking)


def _identities(folder: Path, options: StoreOptions, pointers: Iterable[str]) -> Iterator[str]:
    """Yield the embedding identities of an agent's readable generations."""
    generations = Generations(folder, options)
    for pointer in pointers:
        try:
            name = generations.next() if pointer == NEXT else generations.current()
            if name is not None:
                yield _embedding_of(folder / name, options)
        except RecalldError:
            continue


@lru_cache(maxsize=1024)
def _embedding_of(path: Path, options: StoreOptions) -> str:
    """Return the embedding identity of a generation. It never changes, and names are never reused."""
    reader = Generations(path.parent, options).open_named(path.name)
    if reader is None:
        raise _Gone(f"{path} is gone")
    try:
        return embedding_of(reader.meta("identity"))
    finally:
        reader.close()


class _Gone(RecalldError):
    """Failure that the cache must not remember."""
