"""Memory that the system refuses is no fault of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from memory.store.sqlite.connection import in_our_words
from schemas.errors import OutOfMemory
from schemas.settings import Settings
from tests.written_index import write_index, writer_of


@contextmanager
def memory_of_sqlite(size: int) -> Iterator[None]:
    """Let SQLite have so many bytes in this process."""
    apsw.hard_heap_limit(size)
    try:
        yield
    finally:
        apsw.hard_heap_limit(0)


def test_an_index_that_gets_no_memory_says_so_instead_of_blaming_the_disk(settings: Settings) -> None:
    write_index(settings).close()
    with memory_of_sqlite(1), pytest.raises(OutOfMemory) as raised:
        writer_of(settings).open_reader()
    assert isinstance(raised.value, MemoryError)


def test_an_error_of_memory_needs_no_further_code(tmp_path: Path) -> None:
    """Apsw raises some without the code of SQLite, where it could not make an object of its own."""
    assert isinstance(in_our_words(apsw.NoMemError(), tmp_path), OutOfMemory)
