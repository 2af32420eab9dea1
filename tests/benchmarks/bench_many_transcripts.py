"""Costs of watching a great many transcripts in one folder.

    python -m tests.benchmarks.bench_many_transcripts [--files 100000] [--folders 1000] [--large-mb 2000]

Makes a folder of empty transcripts and one large one (sparse), then measures, in one process and without a queue or
an index: listing all of them, watching the folders, comparing them with an index that holds the same, an event for
each of them at once, and a line that is appended to the large one. Memory is what the process grew by.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from memory.documents.agent_files import AgentFiles
from producers.dispatcher import Dispatcher
from producers.reconciler import Indexes, reconcile
from producers.tailer import Tailer
from producers.watcher import Watcher
from schemas.documents import DocumentKey, FileStat
from schemas.settings import AgentSettings
from tests.recording import RecordingConditions, RecordingQueue, RememberedFiles, as_reader
from tests.waiting import wait_until

T = TypeVar("T")

LINE = b'{"role":"user","content":"one more line"}\n'
KEY = "sessions/large.jsonl"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--folders", type=int, default=1000)
    parser.add_argument("--large-mb", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
        measure(Path(folder), arguments)


def measure(folder: Path, arguments: argparse.Namespace) -> None:
    sessions = folder / "sessions"
    for number in range(arguments.folders):
        (sessions / str(number % 10) / str(number)).mkdir(parents=True)
    for number in range(arguments.files):
        place = number % arguments.folders
        (sessions / str(place % 10) / str(place) / f"{number:032d}.jsonl").touch()
    large = sessions / "large.jsonl"
    with large.open("wb") as out:
        out.truncate(arguments.large_mb * 1_000_000)
        out.seek(0, 2)
        out.write(b"\n")
    (folder / "workspace").mkdir()
    agent = AgentSettings(id="main", workspace=folder / "workspace", sessions=(str(sessions),))
    files = AgentFiles(agent)

    documents = timed("list all", lambda: files.scan().documents)
    heard = Heard()
    watcher = Watcher(heard)
    timed("watch all folders", lambda: watcher.add("main", files))
    print(f"  mode: {watcher.state('main').mode}")
    index = RememberedFiles(dict(documents))
    queue = RecordingQueue()
    timed(
        "compare with an index of the same", lambda: reconcile(agent, files, Indexes(lambda _: as_reader(index)), queue)
    )
    timed("compare with no index", lambda: reconcile(agent, files, Indexes(lambda _: None), queue))

    queue.clear()
    tailer = Tailer({"main": agent}, {"main": files}, lambda _: as_reader(OneFile(documents)))
    dispatcher = Dispatcher({"main": agent}, queue, RecordingConditions(), tailer, on_recovered=lambda: None)
    dispatcher.start()
    with large.open("ab") as out:
        out.write(LINE)
    heard.dispatcher = dispatcher
    timed("one line appended to the large one, and flushed", lambda: appended(large, dispatcher, queue))

    def everything() -> None:
        for key in documents:
            dispatcher.touch("main", key)
        dispatcher.stop()

    timed("an event for each of them, to the end", everything)
    watcher.close()


class OneFile(RememberedFiles):
    """An index that answers for one file as quickly as for all."""

    def __init__(self, documents: Mapping[DocumentKey, FileStat]) -> None:
        key = DocumentKey("sessions", KEY)
        super().__init__({key: documents[key]})


class Heard:
    """A watcher's listener that passes changes on to the dispatcher, once there is one."""

    dispatcher: Dispatcher | None = None

    def on_change(self, agent: str, key: DocumentKey) -> None:
        if self.dispatcher is not None:
            self.dispatcher.touch(agent, key)

    def on_uncertain(self, agent: str, *, lost: bool = False) -> None:
        assert not lost


def appended(path: Path, dispatcher: Dispatcher, queue: RecordingQueue) -> None:
    with path.open("ab") as out:
        out.write(LINE)
    wait_until(lambda: dispatcher.waiting() > 0)
    dispatcher.flush("main")
    wait_until(lambda: KEY in queue.marked("main"))


def timed(what: str, action: Callable[[], T]) -> T:
    memory, wall, cpu = rss_mb(), time.perf_counter(), time.process_time()
    result = action()
    print(
        f"{what}: {time.perf_counter() - wall:.2f} s, {time.process_time() - cpu:.2f} s CPU, "
        f"{rss_mb() - memory:+.0f} MB (peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB)"
    )
    return result


def rss_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


if __name__ == "__main__":
    main()
