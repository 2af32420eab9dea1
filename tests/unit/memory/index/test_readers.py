"""One open reader for all searches of an agent."""

from __future__ import annotations

import random
import threading

import pytest

from memory.index.readers import OpenIndexes, SharedReader
from tests.storing import TemporaryStore


class Openings:
    """Generations of a test, which open a store of its own each time; `inside` are open."""

    def __init__(self) -> None:
        self.name = "current"
        self.opened = 0
        self.inside: list[TemporaryStore] = []

    def token(self) -> object:
        return self.name

    def open_reader(self) -> TemporaryStore:
        self.opened += 1
        inside = self.inside

        class Opened(TemporaryStore):
            def close(self) -> None:
                inside.remove(self)

        inside.append(Opened())
        return inside[-1]


def test_a_lease_while_others_rest_has_an_open_reader():
    """A walk over more agents than may be open, on several threads."""
    openings = [Openings() for _ in range(9)]
    open_indexes = OpenIndexes(3)
    shared = [SharedReader(one, open_indexes=open_indexes) for one in openings]
    wrong: list[object] = []

    def walk(seed: int) -> None:
        steps = random.Random(seed)
        for _ in range(100):
            place = steps.randrange(len(shared))
            with shared[place].lease(passing=steps.random() > 0.8) as reader:
                if reader not in openings[place].inside:
                    wrong.append(place)

    threads = [threading.Thread(target=walk, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with shared[0].lease():
        pass
    assert wrong == []
    assert sum(len(one.inside) for one in openings) == len(open_indexes) <= 3
    for one in shared:
        one.close()
    assert not any(one.inside for one in openings)


def test_readers_of_replaced_generations_close_after_their_last_user():
    openings = [Openings(), Openings()]
    open_indexes = OpenIndexes(3)
    shared = [SharedReader(one, open_indexes=open_indexes) for one in openings]
    with shared[0].lease():
        with shared[1].lease():
            pass
        openings[0].name = "next"
        open_indexes.forget_replaced()
        assert [len(one.inside) for one in openings] == [1, 1], "a search goes on with its reader"
    assert [len(one.inside) for one in openings] == [0, 1]
    with shared[0].lease() as reader:
        assert reader in openings[0].inside
    for one in shared:
        one.close()


def test_a_reader_that_is_closed_while_a_search_opens_it_closes_after_that_search():
    class ClosedMeanwhile(Openings):
        def open_reader(self) -> TemporaryStore:
            shared.close()
            return super().open_reader()

    openings = ClosedMeanwhile()
    shared = SharedReader(openings)
    with shared.lease() as reader:
        assert reader in openings.inside
    assert openings.inside == []
    with pytest.raises(RuntimeError), shared.lease():
        pass
