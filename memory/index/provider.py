"""Provider of an agent's index. A generation knows it: `meta` holds the identity of its vectors, never a key.

The owner of the indexes compares the settings and its keys with the generations (`provider_of`), and begins a NEXT
where they differ. Other workers write the vectors that NEXT or CURRENT has (`written_provider`), and searches ask for
those of CURRENT (`provider_for_queries`). A generation keeps its provider against the settings in six cases:

* The process lacks the requested provider. It adds keywords and leaves the vectors to processes that have it.
* `auto` chose a provider below that of the index in its order. Otherwise a shell without the daemon's key would
  rebuild the index with another model, and the daemon would rebuild it again.
* `auto` takes the bundled model because `local.model_path` is missing. An index of another model waits for the path,
  and no service gets texts or queries of it meanwhile.
* The configured fallback took over (`successor`). The record in `meta` names the lost provider. The fallback stays
  until settings or key of that provider, or `fallback`, change.
* The index was rebuilt for vectors of another width.
* The settings name another address of the same model (`settle_address`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from memory.embedding.breaker import read_waste, waste_path
from memory.embedding.coordination import Coordinate, Item
from memory.embedding.providers.presets import BY_KEY, PRESETS
from memory.embedding.providers.provider import EmbeddingProvider, ProviderUnavailable
from memory.embedding.providers.remote import RemoteProvider
from memory.embedding.selection import (
    NO_VECTORS,
    ProviderChoice,
    choice_for_identity,
    choose_provider,
    facts_in,
    fallback_choice,
)
from memory.http.whole_files import write_whole
from memory.index.fingerprint import embedding_of, name_in
from memory.index.generations import CURRENT, NEXT, GenerationFacts, Generations
from memory.store.reader import Vector, VectorState
from schemas.documents import Lane
from schemas.settings import AgentSettings, MemorySettings, Settings

#: Order in which `auto` tries the providers.
ORDER = (*BY_KEY, "local", "none")

#: Chunks that another address embeds, and the least cosine of these vectors and those of the index.
COMPARED_CHUNKS, SAME_MODEL = 3, 0.999


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
    """Return the provider of an agent's documents, as the owner of the indexes chooses it. Cheap, and never raises.

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


def written_provider(settings: Settings, agent: AgentSettings, *pointers: str) -> ProviderChoice:
    """Return the provider of the vectors in the generation of the first pointer, by default in that of the workers.

    A process that is to embed nothing has none, and one without the provider or its key lacks it.
    """
    generations = _generations(settings, agent, *(pointers or (NEXT, CURRENT)))
    choice = _decide(settings, agent, generations)
    if not generations or choice.identity == generations[0].identity:
        return choice
    if choice.provider is None:
        return replace(choice, indexed=generations[0].identity)
    return choice_for_identity(generations[0].identity, agent, settings.credentials)


def provider_for_queries(settings: Settings, agent: AgentSettings) -> ProviderChoice:
    """Return the provider whose vectors the answering generation holds; NEXT does not count.

    Without such vectors or their provider, return the provider of the settings.
    """
    written = written_provider(settings, agent, CURRENT)
    if written.provider is not None:
        return written
    return _decide(settings, agent, _generations(settings, agent, CURRENT))


def successor(settings: Settings, agent: AgentSettings, *, reason: str) -> tuple[EmbeddingProvider, str] | None:
    """Return the configured fallback if it may take over, and the record for its generation, which the owner begins.

    Return None if it is unavailable or has taken over already, or if this process merely lacks the index's key.
    """
    generations, wish = _generations(settings, agent, NEXT, CURRENT), _wish(settings, agent)
    first, fallback = _decide(settings, agent, generations), fallback_choice(agent, settings.credentials)
    if fallback is None or fallback.provider is None or not settings.store.vector.enabled:
        return None
    if first.provider is not None and first.identity == _of_width(fallback, generations).identity:
        return None
    if wish.missing is not None and fallback.provider.account:
        return None
    if first.provider is None and (
        wish.error is None or agent.provider in {name_in(generation.identity) for generation in generations}
    ):
        # Other processes have the key that this one lacks: the provider works, and so does their index.
        return None
    takeover = Takeover(reason, agent.provider, None, None)
    if (lost_provider := wish.provider) is not None:
        takeover = Takeover(reason, lost_provider.name, lost_provider.identity, lost_provider.account)
    return fallback.provider, json.dumps(asdict(takeover))


def addresses_path(home: Path) -> Path:
    """Return the file of the comparisons: by identity at an address, identities of indexes, each with True if equal."""
    return home / "cache" / "addresses.json"


def settle_address(settings: Settings, agent: AgentSettings, coordinate: Coordinate) -> None:
    """Let another address of the index's model embed chunks that have vectors, and note if these are equal.

    Equal vectors keep index and cache. Indexes without vectors have nothing to keep.

    Raises:
        RecalldError, OSError: the address does not embed them, or the result cannot be written; nothing is begun.
    """
    choice = provider_of(settings, agent)
    if choice.unsettled is None:
        return
    samples, is_same = dict(islice(_samples(settings, choice.indexed), COMPARED_CHUNKS)), False
    with closing(choice.unsettled) as provider:
        if samples:
            items = [Item(text, agent.id) for text in samples]
            rows, _ = coordinate(provider).send(provider, items, lane=Lane.LIVE, dimensions=None)
            pairs = zip(rows, samples.values(), strict=True)
            is_same = all(len(row) == len(vector) and float(row @ vector) >= SAME_MODEL for row, vector in pairs)
    noted = _noted(settings.home)
    noted.setdefault(provider.identity, {})[choice.indexed] = is_same
    write_whole(addresses_path(settings.home), json.dumps(noted).encode())


def embeds_sentences(memory: MemorySettings, provider: EmbeddingProvider | None) -> bool:
    """Return True if the provider also embeds the sentences of chunks: only a model on this machine does."""
    return memory.query.sentences == "auto" and provider is not None and not provider.account


def fallback_problem(settings: Settings, agent: AgentSettings) -> str | None:
    """Return the reason why the configured fallback cannot take over; None if it can, or without one."""
    fallback = fallback_choice(agent, settings.credentials)
    return f"{agent.fallback} cannot take over: {fallback.error}" if fallback is not None and fallback.error else None


def _generations(settings: Settings, agent: AgentSettings, *pointers: str) -> list[GenerationFacts]:
    """Return the facts of the readable generations that pointers name."""
    return list(filter(None, map(Generations.of(settings, agent.id).facts, pointers)))


def _wish(settings: Settings, agent: AgentSettings) -> ProviderChoice:
    """Return the provider that the settings name."""
    return choose_provider(agent, settings.credentials, vectors_enabled=settings.store.vector.enabled)


def _decide(settings: Settings, agent: AgentSettings, generations: Sequence[GenerationFacts]) -> ProviderChoice:
    """Return the provider that the settings name, or that of the generations, the written one first."""
    wish = _wish(settings, agent)
    if not generations:
        return _at_address(settings, wish, ())
    indexed, fallback, takeover = generations[0], None, None
    if wish.missing is not None and indexed.identity not in {wish.identity, NO_VECTORS}:
        made_with = name_in(indexed.identity).replace("local", "another model")
        why = f"{wish.missing}, and the index was made with {made_with}"
        missing = ProviderUnavailable(why, "put it back, or change local.model_path")
        return replace(wish, provider=None, reason=None, lacking=missing, indexed=indexed.identity)
    in_use = [name_in(generation.identity) for generation in generations]
    if indexed.takeover is not None and agent.fallback == in_use[0]:
        takeover = Takeover(**json.loads(indexed.takeover))
        fallback = fallback_choice(agent, settings.credentials)
        in_use.append(takeover.provider)
    wish = _not_below(in_use, wish, agent)
    if wish.error is not None:
        wish = replace(wish, indexed=indexed.identity)
    if takeover is None or fallback is None or not takeover.replaces(wish):
        return _at_address(settings, _of_width(wish, generations), generations)
    why, lacking = f"{agent.fallback} took over: {takeover.reason}", fallback.lacking
    if lacking is not None:
        lacking = ProviderUnavailable(f"{why}; and {lacking.reason}", lacking.remedy)
        return ProviderChoice(None, wish.requested, lacking=lacking, indexed=indexed.identity)
    choice = _of_width(replace(fallback, requested=wish.requested, reason=why), generations)
    return _at_address(settings, choice, generations)


def _at_address(settings: Settings, choice: ProviderChoice, generations: Sequence[GenerationFacts]) -> ProviderChoice:
    """Return the choice with the identity of the index, if that was made at another address of the same model.

    Before the comparison, return one without a provider. The processes of a fleet share no file to note it.
    """
    provider, identities = choice.provider, [generation.identity for generation in generations]
    if not isinstance(provider, RemoteProvider) or provider.identity in identities or settings.store.url is not None:
        return choice
    noted = _noted(settings.home).get(provider.identity, {})
    for identity in identities or noted:
        facts = facts_in(identity)
        endpoint = replace(provider.endpoint, identity_url=str(facts.get("base_url")), width=facts.get("width"))
        if endpoint.identity != identity:
            continue
        if identity not in noted:
            reason = f"the index was made at another address, and {provider.address} was not compared with it yet"
            remedy = "searches use keywords until `recalld up` or `recalld index` embeds three chunks of it there"
            lacking = ProviderUnavailable(reason, remedy)
            return ProviderChoice(None, choice.requested, lacking=lacking, indexed=identity, unsettled=provider)
        if noted[identity]:
            return replace(choice, provider=type(provider)(endpoint))
    return choice


def _noted(home: Path) -> dict[str, dict[str, bool]]:
    with suppress(OSError, ValueError):
        return dict(json.loads(addresses_path(home).read_bytes()))
    return {}


def _samples(settings: Settings, identity: str) -> Iterator[tuple[str, Vector]]:
    """Yield texts and vectors of some chunks of each generation with this identity."""
    for generations in (Generations.of(settings, agent.id) for agent in settings.agents):
        for name in filter(None, (generations.current(), generations.next())):
            if (reader := generations.open_named(name, any_format=True)) is None:
                continue
            with closing(reader):
                if embedding_of(reader.meta("identity")) == identity:
                    chunks = (chunk for file in reader.files() for chunk in reader.chunks_of(file.key))
                    ready = (chunk.id for chunk in chunks if chunk.vector_state is VectorState.READY)
                    vectors = reader.vectors_of(list(islice(ready, COMPARED_CHUNKS)))
                    yield from ((row.text, vectors[number]) for number, row in reader.chunk_rows(list(vectors)).items())


def _of_width(choice: ProviderChoice, generations: Sequence[GenerationFacts]) -> ProviderChoice:
    """Return the choice with the width of the vectors in the agent's index, if that was rebuilt for another one."""
    for generation in generations:
        width = facts_in(generation.identity).get("width")
        if isinstance(choice.provider, RemoteProvider) and width is not None:
            provider = choice.provider.of_width(width)
            if provider.identity == generation.identity:
                return replace(choice, provider=provider)
    return choice


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
