"""Provider of an agent's index. A generation knows it: `meta` holds the identity of its vectors, never a key.

    settings, keys -> wish ---+
    meta of NEXT and CURRENT -+-> provider_of           embeds documents, and decides the index's identity
    meta of CURRENT ----------+-> provider_for_queries  embeds queries

All processes decide alike, and the owner of the indexes alone begins a NEXT for the decision. The wish of the settings
and keys counts, with four exceptions:

* A process that lacks the requested provider keeps the index's identity. It adds keywords and leaves the vectors to
  processes that have the provider.
* `auto` takes the first provider that a process can have. An index moves up that order, never down. Otherwise a shell
  without the daemon's key would rebuild the index with another model, and the daemon would rebuild it again.
* The configured fallback takes over for good reasons (`successor`). Its NEXT records the reason in `meta`. It stays
  until settings or key of the lost provider, or `fallback`, change.
* An index that was rebuilt for vectors of another width goes on with them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from memory.embedding.breaker import read_waste, waste_path
from memory.embedding.providers.presets import BY_KEY, PRESETS
from memory.embedding.providers.provider import ProviderUnavailable
from memory.embedding.providers.remote import RemoteProvider
from memory.embedding.selection import (
    NO_VECTORS,
    ProviderChoice,
    choice_for_identity,
    choose_provider,
    facts_in,
    fallback_choice,
)
from memory.index.fingerprint import embedding_of, name_in
from memory.index.generations import CURRENT, NEXT, Generations
from schemas.errors import RecalldError
from schemas.settings import AgentSettings, MemorySettings, Settings

#: Order in which `auto` tries the providers.
ORDER = (*BY_KEY, "local", "none")


@dataclass(frozen=True, slots=True)
class Takeover:
    """Record of a takeover in the `meta` of a generation: the `reason`, and the name of the provider that was lost.

    `identity` and `account` are None if the lost provider could not be made, for example without its key.
    """

    reason: str
    provider: str
    identity: str | None
    account: str | None

    def replaces(self, wish: ProviderChoice) -> bool:
        """Return True if the fallback stays in place of this choice."""
        if wish.provider is None:
            # A process without the lost provider's key cannot compare the account.
            return wish.lacking is not None and wish.requested in {"auto", self.provider}
        return (wish.identity, wish.provider.account) == (self.identity, self.account)


def provider_of(settings: Settings, agent: AgentSettings, *, rebuild: bool = False) -> ProviderChoice:
    """Return the provider of an agent's documents. Cheap, and never raises, like `choose_provider`.

    With `rebuild`, return that of an index that is built anew on purpose. While the provider is stopped for vectors of
    another width, it has that width.
    """
    choice = _decide(settings, agent, _generations(settings, agent, NEXT, CURRENT))
    provider = choice.provider
    # With a width in the settings, another one is a fault of that setting.
    if rebuild and isinstance(provider, RemoteProvider) and provider.endpoint.dimensions is None:
        waste = read_waste(waste_path(settings.home, provider))
        if waste is not None and waste.got:
            return replace(choice, provider=provider.of_width(waste.got))
    return choice


def provider_for_queries(settings: Settings, agent: AgentSettings) -> ProviderChoice:
    """Return the provider whose vectors the answering generation holds; NEXT does not count.

    Without such vectors, return the provider of the settings.
    """
    generations = _generations(settings, agent, CURRENT)
    choice = _decide(settings, agent, generations)
    if choice.provider is None or not generations or generations[0].identity in {NO_VECTORS, choice.identity}:
        return choice
    return choice_for_identity(generations[0].identity, agent, settings.credentials) or choice


def successor(settings: Settings, agent: AgentSettings, *, reason: str) -> ProviderChoice | None:
    """Return the configured fallback if it may take over, with the record for its generation, which the owner begins.

    Return None if it is unavailable or has taken over already, or if this process merely lacks the index's key.
    """
    generations, wish = _generations(settings, agent, NEXT, CURRENT), _wish(settings, agent)
    first, fallback = _decide(settings, agent, generations), _fallback(settings, agent, generations)
    if first.takeover is not None or fallback is None or fallback.provider is None or not settings.store.vector.enabled:
        return None
    if first.provider is None and (
        wish.error is None or agent.provider in {name_in(generation.identity) for generation in generations}
    ):
        # Other processes have the key that this one lacks: the provider works, and so does their index.
        return None
    takeover = Takeover(reason, agent.provider, None, None)
    if (lost_provider := wish.provider) is not None:
        takeover = Takeover(reason, lost_provider.name, lost_provider.identity, lost_provider.account)
    return replace(fallback, takeover=json.dumps(asdict(takeover)))


def fallback_problem(settings: Settings, agent: AgentSettings) -> str | None:
    """Return the reason why the configured fallback cannot take over; None if it can, or without one."""
    fallback = fallback_choice(agent, settings.credentials)
    return f"{agent.fallback} cannot take over: {fallback.error}" if fallback is not None and fallback.error else None


@dataclass(frozen=True, slots=True)
class _Generation:
    """Facts of a generation that never change: the identity of its vectors, and the takeover that began it."""

    identity: str
    takeover: str | None = None


#: Facts of generations, by folder and name, which is never reused.
_read: dict[tuple[Path, str], _Generation] = {}


def _generations(settings: Settings, agent: AgentSettings, *pointers: str) -> list[_Generation]:
    """Return the facts of the readable generations that pointers name."""
    folder, facts = Generations.of(settings, agent.id), []
    for pointer in pointers:
        with suppress(RecalldError):
            name = folder.pointer(pointer)
            if name is not None and (generation := _facts(folder, name)) is not None:
                facts.append(generation)
    return facts


def _facts(generations: Generations, name: str) -> _Generation | None:
    """Return the facts of a generation, None if it is gone."""
    key = (generations.folder, name)
    if key not in _read and (reader := generations.open_named(name, any_format=True)) is not None:
        with closing(reader):
            _read[key] = _Generation(embedding_of(reader.meta("identity")), reader.meta("takeover"))
    return _read.get(key)


def _wish(settings: Settings, agent: AgentSettings) -> ProviderChoice:
    """Return the provider that the settings name."""
    return choose_provider(agent, settings.credentials, vectors_enabled=settings.store.vector.enabled)


def _decide(settings: Settings, agent: AgentSettings, generations: Sequence[_Generation]) -> ProviderChoice:
    """Return the provider that the settings name, or that of the generations, the written one first."""
    indexed = generations[0] if generations else _Generation(NO_VECTORS)
    in_use, takeover = [name_in(generation.identity) for generation in generations], None
    if indexed.takeover is not None and agent.fallback == in_use[0]:
        takeover = Takeover(**json.loads(indexed.takeover))
        in_use.append(takeover.provider)
    wish = _not_below(in_use, _wish(settings, agent), agent)
    if wish.error is not None:
        wish = replace(wish, indexed=indexed.identity)
    fallback = _fallback(settings, agent, generations) if takeover is not None else None
    if takeover is None or fallback is None or not takeover.replaces(wish):
        return _of_width(wish, generations)
    why, lacking = f"{agent.fallback} took over: {takeover.reason}", fallback.lacking
    return replace(
        fallback,
        requested=wish.requested,
        reason=why if lacking is None else None,
        lacking=ProviderUnavailable(f"{why}; and {lacking.reason}", lacking.remedy) if lacking is not None else None,
        takeover=indexed.takeover,
        indexed=indexed.identity,
    )


def _fallback(settings: Settings, agent: AgentSettings, generations: Sequence[_Generation]) -> ProviderChoice | None:
    fallback = fallback_choice(agent, settings.credentials)
    return _of_width(fallback, generations) if fallback is not None else None


def _of_width(choice: ProviderChoice, generations: Sequence[_Generation]) -> ProviderChoice:
    """Return the choice with the width of the vectors in the agent's index, if that was rebuilt for another one."""
    if not isinstance(provider := choice.provider, RemoteProvider):
        return choice
    of_widths = [
        provider.of_width(facts["width"])
        for generation in generations
        if "width" in (facts := facts_in(generation.identity))
    ]
    identities = {generation.identity for generation in generations}
    return replace(choice, provider=next((anew for anew in of_widths if anew.identity in identities), provider))


def _not_below(in_use: Sequence[str], choice: ProviderChoice, memory: MemorySettings) -> ProviderChoice:
    """Return the choice, or none with an `error` if `auto` chose it and a provider in use comes before it."""
    if choice.requested != "auto" or choice.error is not None:
        return choice
    if choice.name not in ORDER or (choice.name == "local" and memory.local.model_path is not None):
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
    return ProviderChoice(None, choice.requested, lacking=lacking)
