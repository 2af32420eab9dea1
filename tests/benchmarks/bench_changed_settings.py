"""How long an edited note waits to be found while every agent's index is built anew for changed settings.

    python -m tests.benchmarks.bench_changed_settings [--agents 300] [--notes 30] [--edits 40]

`recalld up` indexes everything, ends, and begins again with another chunk size. From the very start on, before anybody
watches, a note of one agent after the other is edited, from both ends of the list, and asked for over HTTP until it is
found. The times contain the debounce (1.5 s by default), for these searches do not ask for a flush.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.bench_freshness import REPOSITORY, listening
from tests.benchmarks.bench_search import percentile
from tests.waiting import wait_until

#: About 1,200 tokens: a few chunks.
_PARAGRAPH = (
    "The gateway of cluster {number} listens on port {port}, is called Basalt and is looked after by team {part}."
)
_PARAGRAPHS = 40

#: Seconds between two edits, as of agents that work.
_PAUSE_SECONDS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=300)
    parser.add_argument("--notes", type=int, default=30)
    parser.add_argument("--edits", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
        measure(Path(folder), agents=arguments.agents, notes=arguments.notes, edits=arguments.edits)


def measure(folder: Path, *, agents: int, notes: int, edits: int) -> None:
    ids = [f"agent-{number:04d}" for number in range(agents)]
    fill(folder, ids, notes=notes)
    begun = time.monotonic()
    with running(folder, ids, tokens=400) as port:
        wait_until(lambda: is_built(folder, ids, port, notes), timeout=1_800)
        print(f"{agents} agents with {notes} notes each: indexed after {time.monotonic() - begun:.1f} s")
    # From both ends of the list, which is worked through in order.
    order = [ids[(-1) ** turn * (turn // 2 * 7 + turn % 2) % agents] for turn in range(edits)]
    edited = Edits(folder, order)
    begun = time.monotonic()
    threading.Thread(target=edited.write, daemon=True).start()
    with running(folder, ids, tokens=300) as port:
        print(f"  other settings: answers after {time.monotonic() - begun:.1f} s")
        waits = edited.find(port)
        times = sorted(seconds for _, _, seconds in waits)
        for id_, at, seconds in waits:
            print(f"    {id_} edited {at - begun:5.1f} s after the start: found after {seconds:5.2f} s")
        print(
            f"  edit to found: median {statistics.median(times):.2f} s, p90 {percentile(times, 90):.2f} s, "
            f"longest {times[-1]:.2f} s over {edits} edits"
        )
        wait_until(lambda: is_built(folder, ids, port, notes), timeout=1_800)
        print(f"  built anew after {time.monotonic() - begun:.1f} s")


def fill(folder: Path, ids: list[str], *, notes: int) -> None:
    for id_ in ids:
        memory = folder / id_ / "memory"
        memory.mkdir(parents=True)
        for number in range(notes):
            lines = [
                _PARAGRAPH.format(number=number, port=7_000 + number, part=f"{id_} {part}")
                for part in range(_PARAGRAPHS)
            ]
            (memory / f"{number:03d}.md").write_text("\n\n".join([f"# Note {number}", *lines]), encoding="utf-8")


@contextmanager
def running(folder: Path, ids: list[str], *, tokens: int) -> Iterator[int]:
    """`recalld up` as soon as it answers; yields the port."""
    config = folder / "recalld.toml"
    lines = ['provider = "stub"', "auth.trust_loopback = true", "service.port = 0", f"chunking.tokens = {tokens}"]
    lines += [f'[[agents]]\nid = "{id_}"\nworkspace = "{folder / id_}"' for id_ in ids]
    config.write_text("\n".join(lines), encoding="utf-8")
    (folder / "home" / "run" / "service.json").unlink(missing_ok=True)
    up = subprocess.Popen(
        [sys.executable, "-m", "recalld", "--config", str(config), "--home", str(folder / "home"), "up"],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield wait_until(lambda: listening(folder / "home"), timeout=120)
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(timeout=120)


def is_built(folder: Path, ids: list[str], port: int, notes: int) -> bool:
    """Whether every agent's index is whole; asked cheaply, the last ones first."""
    indexes = folder / "home" / "indexes"
    if not all((indexes / id_ / "CURRENT").exists() and not (indexes / id_ / "NEXT").exists() for id_ in ids):
        return False
    for id_ in reversed(ids):
        state = asked(port, "GET", f"/v1/status?agent={id_}")["agents"][0]
        if state["index"]["files"] < notes or state["queue"].get("pending") or state["index"].get("vectorsPending"):
            return False
        if not state["index"].get("identityMatches", True):
            return False
    return True


class Edits:
    """Notes that are edited, one agent's after the other's."""

    def __init__(self, folder: Path, order: list[str]) -> None:
        self._folder = folder
        self._order = order
        self._open: dict[str, tuple[str, float]] = {}
        self._written = threading.Event()

    def write(self) -> None:
        for number, id_ in enumerate(self._order):
            word = f"zanzibarium{number}x"
            note = self._folder / id_ / "memory" / "003.md"
            note.write_text(note.read_text("utf-8") + f"\n\nThe {word} was decided today.\n", encoding="utf-8")
            self._open[word] = id_, time.monotonic()
            time.sleep(_PAUSE_SECONDS)
        self._written.set()

    def find(self, port: int) -> list[tuple[str, float, float]]:
        """Ask until all are found: agent, when it was edited, how long it was not found."""
        found: list[tuple[str, float, float]] = []
        while self._open or not self._written.is_set():
            for word, (id_, at) in list(self._open.items()):
                answer = asked(port, "POST", "/v1/search", {"query": word, "agent": id_, "minScore": 0, "waitMs": 0})
                if any(word in result["snippet"] for result in answer["results"]):
                    found.append((id_, at, time.monotonic() - at))
                    del self._open[word]
            time.sleep(0.05)
        return sorted(found, key=lambda entry: entry[1])


def asked(port: int, method: str, path: str, body: object = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        return json.load(connection.getresponse())
    finally:
        connection.close()


if __name__ == "__main__":
    main()
