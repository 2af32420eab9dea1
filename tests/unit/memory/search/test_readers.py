"""One open reader for all searches of an agent."""

from __future__ import annotations

import random
import resource
import threading

import pytest

from memory.index.readers import FEWEST_OPEN, MOST_OPEN, OpenReaders, SharedReader, most_open
from tests.storing import TemporaryStore


class Store(TemporaryStore):
    closed = 0

    def close(self) -> None:
        self.closed += 1


class Pointers:
    """Generations of a test: `store` is what CURRENT names."""

    def __init__(self, store: Store | None) -> None:
        self.store = store
        self.opened = 0
        self.error: Exception | None = None

    def token(self) -> object:
        return id(self.store)

    def open_reader(self) -> Store | None:
        if self.error is not None:
            raise self.error
        self.opened += 1
        return self.store


def test_after_a_flip_the_old_reader_is_closed_when_its_last_user_is_done():
    old, new = Store(), Store()
    pointers = Pointers(old)
    shared = SharedReader(pointers)

    with shared.lease() as first:
        pointers.store = new
        with shared.lease() as second:
            assert (first, second) == (old, new)
        assert old.closed == 0
    assert (old.closed, new.closed) == (1, 0)


def test_closing_waits_for_those_who_read():
    store = Store()
    shared = SharedReader(Pointers(store))

    with shared.lease():
        shared.close()
        assert store.closed == 0
    assert store.closed == 1
    with pytest.raises(RuntimeError, match="closed"), shared.lease():
        pass


class Openings(Pointers):
    """Opens a store of its own each time; `inside` are open."""

    def __init__(self) -> None:
        super().__init__(None)
        self.inside: list[Store] = []

    def open_reader(self) -> Store:
        self.opened += 1
        pointers = self

        class Opened(Store):
            def close(self) -> None:
                super().close()
                pointers.inside.remove(self)

        self.inside.append(Opened())
        return self.inside[-1]


def test_a_visit_leaves_nothing_open_and_lets_nobody_rest():
    openings = [Openings() for _ in range(3)]
    open_readers = OpenReaders(1)
    shared = [SharedReader(one, open_readers=open_readers) for one in openings]
    with shared[0].lease() as leased:
        pass
    for one in shared:
        with one.visit() as reader:
            assert reader is not None
    assert [len(one.inside) for one in openings] == [1, 0, 0]
    with shared[0].visit() as visited:
        assert visited is leased
    assert openings[0].opened == 1


def test_whoever_leases_while_others_rest_has_an_open_reader():
    """A walk over more agents than may be open, on several threads."""
    openings = [Openings() for _ in range(9)]
    open_readers = OpenReaders(3)
    shared = [SharedReader(one, open_readers=open_readers) for one in openings]
    wrong: list[object] = []

    def walk(seed: int) -> None:
        steps = random.Random(seed)
        for _ in range(400):
            place = steps.randrange(len(shared))
            with shared[place].lease() if steps.random() < 0.8 else shared[place].visit() as reader:
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
    assert sum(len(one.inside) for one in openings) == len(open_readers) <= 3
    for one in shared:
        one.close()
    assert not any(one.inside for one in openings)


@pytest.mark.parametrize(
    ("limit", "most"),
    [(128, FEWEST_OPEN), (600, 77), (1_024, MOST_OPEN), (resource.RLIM_INFINITY, MOST_OPEN)],
)
def test_how_many_are_open_depends_on_how_many_files_may_be(monkeypatch, limit: int, most: int):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert most_open() == most
