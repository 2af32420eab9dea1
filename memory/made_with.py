"""What an agent's index was made with, why `auto` does not replace that with less, and why it gets no prefixes.

`auto` takes the first provider that a process can have, so what it takes depends on the keys and packages of that
process: a shell without the daemon's key would begin to build the index anew with another model, and the daemon would
take that back. So an index moves up the order of `auto` by itself, and never down: a process that lacks what the index
was made with leaves its vectors to those who have it, and says so.

An index that was made without the prefixes of its model's family finds well enough, and to embed it again has a price.
So both sides go on without them until a person rebuilds it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from memory.embedding.presets import BY_KEY, PRESETS
from memory.embedding.selection import Lacking, ProviderChoice
from memory.fingerprint import embedding_of
from memory.generations import CURRENT, NEXT, Generations
from memory.store.options import StoreOptions
from schemas.errors import RecalldError
from schemas.settings import MemorySettings

#: What `auto` takes, the first one that there is.
ORDER = (*BY_KEY, "local", "none")


def embeddings_in_use(folder: Path, options: StoreOptions, *, under_construction: bool) -> tuple[str, ...]:
    """Return the embedding identities of the generation under construction, if asked for, and of the one that answers.

    What is not there or cannot be read has none.
    """
    generations = Generations(folder, options)
    pointers = [NEXT, CURRENT] if under_construction else [CURRENT]
    return tuple(_identities(generations, folder, options, pointers))


def without_new_prefixes(
    choice: ProviderChoice, plain: Callable[[], ProviderChoice | None], in_use: Callable[[], Iterable[str]]
) -> ProviderChoice:
    """Return the `plain` choice, which has no prefixes, where the index was made with it; `rebuilt` is the other's."""
    if choice.provider is None or not _has_prefixes(choice.provider.identity):
        return choice
    made, instead = tuple(in_use()), plain()
    if choice.provider.identity in made or instead is None or instead.provider is None:
        return choice
    return replace(instead, rebuilt=choice.provider) if instead.provider.identity in made else choice


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


def _identities(
    generations: Generations, folder: Path, options: StoreOptions, pointers: Iterable[str]
) -> Iterator[str]:
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
    return str(_facts(identity).get("provider", "none"))


def _has_prefixes(identity: str) -> bool:
    facts = _facts(identity)
    return "query_prefix" in facts or "document_prefix" in facts


def _facts(identity: str) -> dict[str, Any]:
    try:
        facts = json.loads(identity)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


class _Gone(RecalldError):
    """Not to be remembered."""
