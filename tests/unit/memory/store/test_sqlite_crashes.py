"""A writer that is killed, wherever it was, leaves whole transactions."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from memory.store.options import StoreOptions
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.writer import SqliteStore
from memory.store.writer import WriteOutcome
from tests.storing import document, key, vector

CHECKOUT = Path(__file__).parents[4]

DIE_IN_A_TRANSACTION = """
    import os, signal, sys
    from pathlib import Path
    from memory.store.options import StoreOptions
    from memory.store.sqlite.writer import SqliteStore
    from tests.storing import document, key, vector

    store = SqliteStore(Path(sys.argv[1]), StoreOptions())
    store.write([document(key("MEMORY.md"), "gateway", vectors=[vector(1)])])
    with store.transaction() as transaction:
        transaction.apply(document(key("memory/other.md"), "half", vectors=[vector(2)]))
        transaction.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_keeps_what_was_committed_and_nothing_of_the_transaction_it_hit(index_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DIE_IN_A_TRANSACTION), str(index_path)], timeout=60, cwd=CHECKOUT
    )
    reader = SqliteReader(index_path, StoreOptions())
    assert [file.key.path for file in reader.files()] == ["MEMORY.md"]
    assert len(reader.search_vectors(vector(1), 5)) == 1
    assert len(reader.search_text("gateway half", 5)) == 1
    assert reader.check() == []
    reader.close()
    store = SqliteStore(index_path, StoreOptions())
    assert store.write([document(key("memory/other.md"), "written after it all")]) == [WriteOutcome.COMMITTED]
    assert store.check() == []
    store.close()
