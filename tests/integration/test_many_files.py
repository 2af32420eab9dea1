"""A great many tiny files and empty folders: what listing, comparing and watching them costs."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles
from producers.reconciler import Indexes, reconcile
from producers.watcher import Watcher
from schemas.settings import AgentSettings
from tests.recording import Heard, RecordingQueue, RememberedFiles, as_reader

FOLDERS, FILES = 200, 100


@pytest.mark.long
def test_a_great_many_files_and_folders_cost_little_each(tmp_path: Path) -> None:
    memory = tmp_path / "ws" / "memory"
    for folder in range(FOLDERS):
        (memory / f"{folder}").mkdir(parents=True)
        for number in range(FILES):
            (memory / f"{folder}" / f"{number}.md").write_text(f"tiny {folder} {number}")
    for folder in range(10_000):
        (memory / "empty" / f"{folder // 100}" / f"{folder}").mkdir(parents=True)
    agent = AgentSettings(id="main", workspace=tmp_path / "ws")
    files = AgentFiles(agent)

    tracemalloc.start()
    scan = files.scan()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(scan.documents) == FOLDERS * FILES
    assert peak < 700 * len(scan.documents)

    queue = RecordingQueue()
    known = as_reader(RememberedFiles(dict(scan.documents)))
    tracemalloc.start()
    report = reconcile(agent, files, Indexes(lambda _: known), queue)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (report.marked, report.on_disk, queue.calls) == (0, FOLDERS * FILES, [])
    assert peak < 260 * report.on_disk, "neither the disk's nor the index's documents are held, only digests"

    before = _descriptors()
    watcher = Watcher(Heard())
    try:
        watcher.add("main", files)
        assert len(watcher.folders()) >= FOLDERS + 10_000
        assert _descriptors() - before <= 5
    finally:
        watcher.close()
    assert _descriptors() == before


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
