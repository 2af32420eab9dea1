"""What an agent's index was made with, and why `auto` does not replace that with less.

`auto` takes the first provider that a process can have, so what it takes depends on the keys and packages of that
process: a shell without the daemon's key would begin to build the index anew with another model, and the daemon would
take that back. So an index moves up the order of `auto` by itself, and never down: a process that lacks what the index
was made with leaves its vectors to those who have it, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from memory.embedding.providers.presets import BY_KEY, PRESETS
from memory.embedding.selection import Lacking, ProviderChoice
from memory.index.fingerprint import embedding_of
from memory.index.generations import CURRENT, NEXT, Generations
from memory.store.options import StoreOptions
from schemas.errors import RecalldError
from schemas.settings import MemorySettings

#: What `auto` takes, the first one that there is.
ORDER = (*BY_KEY, "local", "none")


def as_indexed(choice: ProviderChoice, folder: Path, options: StoreOptions) -> ProviderChoice:
    """Return the choice with its `earlier` provider where the agent's index was made with that and is not made anew."""
    if choice.earlier is None or choice.provider is None:
        return choice
    made = list(_identities(folder, options, [NEXT, CURRENT]))
    if choice.earlier.identity not in made or choice.provider.identity in made:
        return choice
    return replace(choice, provider=choice.earlier, earlier=None, rebuilt=choice.provider)


def providers_in_use(folder: Path, options: StoreOptions, *, under_construction: bool) -> tuple[str, ...]:
    """Names of the providers of an agent's generations: of the one under construction, if asked for, then of the one
    that answers. What cannot be read has none.
    """
    return tuple(map(name_in, _identities(folder, options, [NEXT, CURRENT] if under_construction else [CURRENT])))


def embedding_in_use(folder: Path, options: StoreOptions) -> str | None:
    """The embedding identity of the generation that answers; None where there is none, or it cannot be read."""
    return next(_identities(folder, options, [CURRENT]), None)


def without_stepping_down(choice: ProviderChoice, memory: MemorySettings, in_use: Iterable[str]) -> ProviderChoice:
    """The choice, unless `auto` took less than what the index was made with: then none, with an `error`."""
    if choice.requested != "auto" or choice.error is not None or choice.name not in ORDER:
        return choice
    if choice.name == "local" and memory.local.model_path is not None:
        return choice  # asked for by name
    above = ORDER[: ORDER.index(choice.name)]
    better = next((name for name in in_use if name in above), None)
    if better is None:
        return choice
    key = PRESETS[better].key_name if better in PRESETS else None
    lacking = Lacking(
        f"the index was made with {better}{f' ({key})' if key else ''}, which this process does not have "
        f"({choice.reason}): new chunks wait for their vectors until one that has it runs",
        f'to have everything embedded anew instead, set provider = "{choice.name}"',
    )
    return ProviderChoice(None, choice.requested, "none", None, str(lacking), lacking=lacking)


def _identities(folder: Path, options: StoreOptions, pointers: Iterable[str]) -> Iterator[str]:
    """Return the embedding identities of an agent's generations that can be read."""
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
    """The embedding identity of one generation. A generation never changes it, nor gets another's name."""
    reader = Generations(path.parent, options).open_named(path.name)
    if reader is None:
        raise _Gone(f"{path} is gone")
    try:
        return embedding_of(reader.meta("identity"))
    finally:
        reader.close()


def name_in(identity: str) -> str:
    """The name of the provider in its identity; "none" where there is none."""
    try:
        facts = json.loads(identity)
    except ValueError:
        return "none"
    return str(facts.get("provider", "none")) if isinstance(facts, dict) else "none"


class _Gone(RecalldError):
    """Not to be remembered."""
