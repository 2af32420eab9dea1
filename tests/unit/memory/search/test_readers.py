"""One open reader for all searches of an agent."""

from __future__ import annotations

import pytest

from memory.search.readers import SharedReader
from memory.store.errors import StoreCorrupt
from memory.store.stub import InMemoryStore


class Store(InMemoryStore):
    closed = 0

    def close(self) -> None:
        self.closed += 1


class Pointers:
    """Generations of a test: `store` is what CURRENT names."""

    def __init__(self, store: Store | None) -> None:
        self.store = store
        self.opened = 0
        self.error: Exception | None = None

    def pointer_token(self) -> object:
        return id(self.store)

    def open_reader(self) -> Store | None:
        if self.error is not None:
            raise self.error
        self.opened += 1
        return self.store


def test_searches_share_one_reader():
    pointers = Pointers(Store())
    shared = SharedReader(pointers)

    with shared.lease() as one, shared.lease() as two:
        assert one is two is pointers.store
    assert pointers.opened == 1


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


def test_an_index_that_appears_later_is_noticed():
    pointers = Pointers(None)
    shared = SharedReader(pointers)
    with shared.lease() as nothing:
        assert nothing is None

    pointers.store = Store()
    with shared.lease() as reader:
        assert reader is pointers.store


def test_an_unreadable_new_generation_leaves_nothing_open_and_is_tried_again():
    old = Store()
    pointers = Pointers(old)
    shared = SharedReader(pointers)
    with shared.lease():
        pass
    pointers.store, pointers.error = Store(), StoreCorrupt("damaged")
    with pytest.raises(StoreCorrupt), shared.lease():
        pass

    pointers.error = None
    with shared.lease() as reader:
        assert reader is pointers.store
    assert old.closed == 1


def test_closing_waits_for_those_who_read():
    store = Store()
    shared = SharedReader(Pointers(store))

    with shared.lease():
        shared.close()
        assert store.closed == 0
    assert store.closed == 1
    with pytest.raises(RuntimeError, match="closed"), shared.lease():
        pass
