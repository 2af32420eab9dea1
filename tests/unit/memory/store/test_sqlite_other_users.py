"""An index is read by users who can write neither it nor its folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.store.options import StoreOptions
from memory.store.sqlite.writer import SqliteStore, create_generation
from tests.storing import filled

CHECKOUT = Path(__file__).parents[4]

NOBODY = 65534

# Everything is imported before the user changes: the place of the interpreter may be private.
AS_NOBODY = f"""
import os, sys
from pathlib import Path
import numpy, apsw
from memory.store.options import StoreOptions
from memory.store.sqlite.reader import SqliteReader
from tests.storing import vector
from tests.waiting import wait_until
vector(1)
os.setgid({NOBODY})
os.setuid({NOBODY})
path = Path(sys.argv[1])
assert not os.access(path.parent, os.W_OK)
reader = SqliteReader(path, StoreOptions())
"""

LOOK = "print(len(reader.search_text('网关', 200)), len(reader.search_vectors(vector(1), 200)), reader.check())"

WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from memory.store.options import StoreOptions
from memory.store.sqlite.writer import SqliteStore
from tests.storing import filled
store = SqliteStore(Path(sys.argv[1]), StoreOptions())
filled(store, documents=1, chunks=7)
os.kill(os.getpid(), signal.SIGKILL)
"""

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture
def index_path() -> Iterator[Path]:
    """An empty generation in a folder that everybody reads and its owner writes (pytest's own are private)."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    path = folder / "index.sqlite"
    create_generation(path, StoreOptions(), fingerprint="f", description="")
    yield path
    shutil.rmtree(folder)


def start(script: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=CHECKOUT,
    )


def output_as_nobody(path: Path) -> str:
    return start(AS_NOBODY + LOOK, path).communicate(timeout=60)[0].strip()


def remove_log_files(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


@pytest.mark.parametrize("state", ["it is closed", "a writer is at work", "it is a copy without log files"])
def test_another_user_reads_an_index(index_path: Path, state: str) -> None:
    store = SqliteStore(index_path, StoreOptions())
    filled(store, documents=1, chunks=7)
    if state != "a writer is at work":
        store.close()
    if state == "it is a copy without log files":
        remove_log_files(index_path)
    before = sorted(index_path.parent.iterdir())
    assert output_as_nobody(index_path) == "7 7 []"
    assert sorted(index_path.parent.iterdir()) == before
    store.close()


def test_another_user_reads_what_a_killed_writer_left_in_the_log(index_path: Path) -> None:
    start(WRITE_AND_DIE, index_path).communicate(timeout=60)
    assert index_path.with_name("index.sqlite-wal").stat().st_size > 0
    assert output_as_nobody(index_path) == "7 7 []"


def test_an_index_whose_log_is_out_of_reach_is_not_read_without_it(index_path: Path) -> None:
    start(WRITE_AND_DIE, index_path).communicate(timeout=60)
    index_path.with_name("index.sqlite-wal").chmod(0o600)
    index_path.with_name("index.sqlite-shm").chmod(0o600)
    assert "StoreUnreadable" in output_as_nobody(index_path)


def test_a_reader_of_a_quiet_file_notices_when_it_is_written_again(index_path: Path) -> None:
    remove_log_files(index_path)
    script = """
    print(reader.counts().chunks, flush=True)
    wait_until(lambda: path.with_name("written").exists())
    print(reader.counts().chunks)
    """
    process = start(AS_NOBODY + textwrap.dedent(script), index_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    store = SqliteStore(index_path, StoreOptions())
    filled(store, documents=1, chunks=7)
    index_path.with_name("written").touch()
    assert process.communicate(timeout=60)[0] == "7\n"
    store.close()
