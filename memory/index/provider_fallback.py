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
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

import structlog

from memory.embedding.breaker import read_waste, waste_path
from memory.embedding.providers.presets import BY_KEY, PRESETS
from memory.embedding.providers.provider import ProviderUnavailable
from memory.embedding.providers.remote import RemoteProvider
from memory.embedding.selection import NO_VECTORS, ProviderChoice, choose_provider, facts_in, fallback_choice, made_like
from memory.index.fingerprint import made_with, name_in
from memory.index.generations import CURRENT, NEXT, Generations
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, MemorySettings, Settings

log = structlog.get_logger(__name__)

_FILE = "FALLBACK"

#: Order in which `auto` tries the providers.
ORDER = (*BY_KEY, "local", "none")

#: `GenerationWriter.set_note`.
SetNote: TypeAlias = Callable[[str, str | None], None]


@dataclass(frozen=True, slots=True)
class Takeover:
    """Record of a takeover under the present settings: the reason, and the first provider's account and name.

    `account` is None if the first provider could not be made, for example without its key.
    """

    account: str | None
    reason: str
    provider: str


def provider_of(settings: Settings, agent: AgentSettings, *, for_queries: bool = False) -> ProviderChoice:
    """Return the provider that an agent uses now. Cheap, and never raises, like `choose_provider`.

    With `for_queries`, return the provider of the answering generation, whatever is under construction.
    """
    own = _Providers(settings, agent)
    first = own.first(for_queries=for_queries)
    fallback = fallback_choice(agent, settings.credentials) if own.has_taken_over(first) else None
    if fallback is None or own.takeover is None:
        return first
    fallback = own.of_indexed_width(fallback)
    why = f"{agent.fallback} took over: {own.takeover.reason}"
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
    identity = next(iter(_Providers(settings, agent).identities(CURRENT)), None)
    if identity in {None, NO_VECTORS, chosen.provider.identity}:
        return chosen
    return made_like(str(identity), agent, settings.credentials) or chosen


def take_over(settings: Settings, agent: AgentSettings, *, reason: str, set_note: SetNote) -> bool:
    """Let the configured fallback take over; return True if it did. The owner of the indexes calls it.

    It does not if it is unavailable or has taken over already, or if this process merely lacks the index's key. The
    caller has the agent indexed with the new provider.
    """
    own = _Providers(settings, agent)
    first = own.first()
    if first.provider is None and (own.asked_for().error is None or agent.provider in own.names(NEXT, CURRENT)):
        # Other processes have the key that this one lacks: the provider works, and so does their index.
        return False
    fallback = fallback_choice(agent, settings.credentials)
    if fallback is None or fallback.error is not None or not settings.store.vector.enabled:
        return False
    if own.has_taken_over(first):
        return False
    record = {
        "settings": _digest(agent),
        "account": first.provider.account if first.provider is not None else None,
        "reason": reason,
        "since": time.time(),
        "provider": first.name,
    }
    set_note(_FILE, json.dumps(record))
    log.warning("fallback_took_over", agent=agent.id, fallback=agent.fallback, reason=reason)
    return True


def fallback_problem(settings: Settings, agent: AgentSettings) -> str | None:
    """Return the reason why the configured fallback cannot take over; None if it can, or without one."""
    fallback = fallback_choice(agent, settings.credentials)
    return f"{agent.fallback} cannot take over: {fallback.error}" if fallback is not None and fallback.error else None


def forget_void_takeover(settings: Settings, agent: AgentSettings, *, set_note: SetNote) -> None:
    """Delete a record that no longer matches the settings or the key. The owner of the indexes calls it."""
    own = _Providers(settings, agent)
    first = own.first()
    if own.generations.token(_FILE) is not None and not own.has_taken_over(first):
        set_note(_FILE, None)
        log.info("fallback_over", agent=agent.id, provider=first.name)


def takeover_token(generations: Generations) -> object:
    """Return a value that differs when the results of `provider_of` may differ. Costs a few `stat`s.

    It changes when a takeover begins or ends, and with the pointers CURRENT and NEXT.
    """
    return generations.token(_FILE), generations.token(CURRENT), generations.token(NEXT)


class _Providers:
    """Providers of one agent, by its settings, its generations and the record of a takeover."""

    def __init__(self, settings: Settings, agent: AgentSettings) -> None:
        self._settings = settings
        self._agent = agent
        self.generations = Generations.of(settings, agent.id)
        self.takeover = self._noted()

    def _noted(self) -> Takeover | None:
        try:
            facts = json.loads(self.generations.note(_FILE) or "null")
            if facts is None or facts["settings"] != _digest(self._agent):
                return None
            account = facts["account"]
            named = None if account is None else str(account)
            return Takeover(named, str(facts["reason"]), str(facts.get("provider", "")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("fallback_note_unreadable", error=str(error))
            return None

    def has_taken_over(self, first: ProviderChoice) -> bool:
        """Return True if the fallback is in use in place of the first provider."""
        # A process without the first provider's key cannot compare the account.
        return self.takeover is not None and (first.provider is None or first.provider.account == self.takeover.account)

    def first(self, *, for_queries: bool = False) -> ProviderChoice:
        """Return the provider that the settings name; none if this process merely lacks the index's provider."""
        first = self.asked_for()
        in_use = self.names(CURRENT) if for_queries else self.names(NEXT, CURRENT)
        if self.takeover is not None:
            in_use.append(self.takeover.provider)  # the provider before the takeover
        return _without_stepping_down(first, self._agent, in_use) if first.requested == "auto" else first

    def asked_for(self) -> ProviderChoice:
        """Return the provider that the settings name."""
        enabled = self._settings.store.vector.enabled
        return self.of_indexed_width(choose_provider(self._agent, self._settings.credentials, vectors_enabled=enabled))

    def of_indexed_width(self, choice: ProviderChoice) -> ProviderChoice:
        """Return the choice with the width of the vectors in the agent's index, if that was rebuilt for another one.

        While the provider is stopped for its width, `rebuilt` is the provider of a rebuild.
        """
        if not isinstance(provider := choice.provider, RemoteProvider):
            return choice
        made = self.identities(NEXT, CURRENT)
        of_widths = [provider.of_width(facts["width"]) for facts in map(facts_in, made) if "width" in facts]
        provider = next((one for one in of_widths if one.identity in made), provider)
        width_is_set = provider.endpoint.dimensions is not None  # another width is a fault of that setting
        waste = None if width_is_set else read_waste(waste_path(self._settings.home, provider))
        rebuilt = provider.of_width(waste.got) if waste is not None and waste.got else None
        return replace(choice, provider=provider, rebuilt=rebuilt)

    def names(self, *pointers: str) -> list[str]:
        """Return the names of the providers of the readable generations."""
        return [name_in(identity) for identity in self.identities(*pointers)]

    def identities(self, *pointers: str) -> list[str]:
        """Return the embedding identities of the readable generations."""
        found = []
        for pointer in pointers:
            with suppress(RecalldError):
                name = self.generations.next() if pointer == NEXT else self.generations.current()
                if name is not None:
                    found.append(made_with(self.generations, name) or NO_VECTORS)
        return found


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


def _without_stepping_down(choice: ProviderChoice, memory: MemorySettings, in_use: Collection[str]) -> ProviderChoice:
    """Return the choice, or none with an `error` if `auto` chose less than the index was made with."""
    if choice.error is not None or choice.name not in ORDER:
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
