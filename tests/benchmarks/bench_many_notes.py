"""Costs of comparing very many notes with an index that knows them all: as `status` does it, and the producers.

    python -m tests.benchmarks.bench_many_notes [--notes 100000] [--folder /dev/shm]

The notes are empty and the index holds nothing but their rows. Each comparison runs in a process of its own; its memory
is the most that it had resident, the mapped part of the index file included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from memory.documents.agent_files import AgentFiles
from memory.index.generation_writer import GenerationWriter
from memory.status.home import build_status
from memory.store.options import StoreOptions
from producers.reconciler import reconcile
from recalld.wiring import fingerprint_of, indexes_of
from schemas.settings import Settings
from tests.quiet_board import QuietBoard
from tests.recording import RecordingQueue

_INSERT = """
INSERT INTO files (source, path, size, mtime_ns, inode, ctime_ns, content_hash, revision, indexed_at, notes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1.0, '[]')
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notes", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        # A process begins with the peak of the one that started it, so this one stays small.
        apart(fill, folder, arguments.notes)
        apart(timed, status, folder)
        apart(timed, comparison, folder)


def apart(work: Callable[..., None], *arguments: object) -> None:
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()


def settings_in(folder: Path) -> Settings:
    agent = {"id": "main", "workspace": folder / "workspace", "provider": "none"}
    return Settings.model_validate({"home": folder / "home", "agents": [agent]})


def fill(folder: Path, count: int) -> None:
    for number in range(count):
        below = folder / "workspace" / "memory" / f"{number // 1_000:04d}"
        if number % 1_000 == 0:
            below.mkdir(parents=True)
        (below / f"a-note-of-some-length-{number % 1_000:04d}.md").touch()
    settings = settings_in(folder)
    writer = GenerationWriter(settings.indexes_path / "main", StoreOptions.of(settings.store))
    identity = fingerprint_of(settings, settings.agent("main"))
    writer.open_writer(identity.digest, identity.description)
    connection = apsw.Connection(str(settings.indexes_path / "main" / str(writer.current())))
    writer.close()
    scan = AgentFiles.of(settings, settings.agent("main")).scan()
    with connection:
        for number, (key, stat) in enumerate(scan.documents.items()):
            stats = stat.size, stat.mtime_ns, stat.inode, stat.ctime_ns
            connection.execute(_INSERT, (key.source, key.path, *stats, f"{number:064x}", number + 1))
    connection.close()


def status(settings: Settings) -> str:
    disk = build_status(settings, QuietBoard()).agents[0].disk
    assert not disk.missing + disk.stale + disk.vanished
    return f"status of {disk.files:,} notes"


def comparison(settings: Settings) -> str:
    agent = settings.agent("main")
    files = AgentFiles.of(settings, agent)
    report = reconcile(agent, files, indexes_of(settings), RecordingQueue())
    assert not report.marked
    return f"comparison of {report.on_disk:,} notes by the producers"


def timed(what: Callable[[Settings], str], folder: Path) -> None:
    settings = settings_in(folder)
    before = peak()
    begun = time.perf_counter(), time.process_time()
    said = what(settings)
    seconds, cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
    print(f"{said}: {seconds:.1f} s, {cpu:.1f} s of a processor, {peak():.0f} MB ({before:.0f} before)")


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
