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
from tests.waiting import wait_until

CHECKOUT = Path(__file__).parents[4]

WRITE_FOR_EVER = """
    import itertools, sys
    from pathlib import Path
    from memory.store.options import StoreOptions
    from memory.store.sqlite.writer import SqliteStore
    from memory.store.writer import DocumentDelete, DocumentWrite
    from tests.storing import STAT, chunk, document, key, vector

    store = SqliteStore(Path(sys.argv[1]), StoreOptions())
    print("ready", flush=True)
    for number in itertools.count():
        name = key(f"memory/{number % 7}.md")
        held = tuple(one.id for one in store.chunks_of(name))
        if number % 5 == 4:
            store.write([DocumentDelete(name, store.revision(name))])
            continue
        vectors = [vector(part) if part % 2 else None for part in range(30)]
        added = tuple(chunk(f"{number} part {part} 网关", part, vector=vectors[part]) for part in range(30))
        store.write([DocumentWrite(name, store.revision(name), STAT, str(number), added=added, removed=held)])
        pending = store.pending_chunks(9)
        store.write_vectors({one.id: (one.text_hash, vector(1)) for one in pending})
"""


def test_a_killed_writer_leaves_whole_transactions(index_path: Path) -> None:
    for kill_number in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITE_FOR_EVER), str(index_path)],
            stdout=subprocess.PIPE,
            cwd=CHECKOUT,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        reader = SqliteReader(index_path, StoreOptions())
        start = reader.change_token()
        commits = 3 + 8 * kill_number
        wait_until(
            lambda reader=reader, start=start, commits=commits: int(reader.change_token()[1]) > int(start[1]) + commits,
            timeout=120,
        )
        process.kill()
        process.wait()
        process.stdout.close()
        assert reader.check() == []
        assert all(len(reader.chunks_of(file.key)) == 30 for file in reader.files())
        reader.close()

    store = SqliteStore(index_path, StoreOptions())
    name = key("memory/after.md")
    assert store.write([document(name, "written after it all", revision=store.revision(name))]) == [
        WriteOutcome.COMMITTED
    ]
    assert store.check() == []
    store.close()


DIE_IN_A_TRANSACTION = """
    import os, signal, sys
    from pathlib import Path
    from memory.store.options import StoreOptions
    from memory.store.sqlite.writer import SqliteStore
    from tests.storing import document, key, vector

    store = SqliteStore(Path(sys.argv[1]), StoreOptions())
    store.write([document(key("MEMORY.md"), "gateway", vectors=[vector(1)])])
    with store.transaction() as transaction:
        transaction.put(document(key("memory/other.md"), "half", vectors=[vector(2)]))
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
