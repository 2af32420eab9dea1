"""Costs of a backfill of old transcripts, beside floors measured in the same run.

    python -m tests.benchmarks.bench_backfill [--megabytes 500] [--file-megabytes 0.5] [--said 4] [--small 20000]
        [--shares 10 50 90] [--dimensions 1536]

Generates transcripts of all formats as real ones are: so many percent were said, the rest are results of tools. Then
`recalld backfill` runs as a child in a home of its own, against an endpoint in this process that answers at once.
Printed are CPU, wall, peak memory of the child (its broker aside), seconds until the plan is said and until the first
passage is found, requests estimated and sent, and the share that its progress shows beside the true one; the floors
(read, orjson, plain FTS5 of the chunks); the CPU of a backfill that was interrupted at so many percent and resumed, and
where the second one begins; the same for so many sessions of 2.6 kB; each command again with nothing left to do.
"""

from __future__ import annotations

import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import orjson

from tests.benchmarks.frame import Home, InstantServer, options
from tests.daemon import REPOSITORY, clean_environment
from tests.transcript_files import BEGUN, FORMATS, conversation, message_line
from tests.written_index import reading

MEGABYTE = 1_000_000

#: Messages between two results of tools.
MESSAGES_A_TOOL = 2

#: Bytes of a small session, and its turns.
SMALL_BYTES, SMALL_TURNS = 2_600, 3

#: Word of nearly every conversation, by which the first passage is found.
WORD = "gateway"


def main() -> None:
    """Generate, run, print."""
    parser = options(__doc__)
    parser.add_argument("--megabytes", type=float, default=500.0)
    parser.add_argument("--file-megabytes", type=float, default=0.5)
    parser.add_argument("--said", type=float, default=4.0, help="percent")
    parser.add_argument("--small", type=int, default=20_000, help="sessions")
    parser.add_argument("--shares", type=float, nargs="*", default=[10, 50, 90], help="percent")
    parser.add_argument("--dimensions", type=int, default=1536)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as name, InstantServer(arguments.dimensions) as server:
        folder = Path(name)
        (folder / "workspace").mkdir()
        settings = f'{server.settings}[[agents]]\nid = "main"\nworkspace = "{folder / "workspace"}"\n'
        if arguments.megabytes:
            share = arguments.said / 100
            size, said = write_transcripts(folder / "old", arguments.megabytes, arguments.file_megabytes, share=share)
            row("generated", f"{size / MEGABYTE:,.0f} MB, {said / size:.1%} of it said")
            whole = measure(Home(folder / "whole", settings), folder / "old", server)
            floors(folder / "old", Home(folder / "whole", settings))
            for percent in arguments.shares:
                measure_interrupted(Home(folder / f"at-{percent}", settings), folder / "old", percent, whole)
        if arguments.small:
            write_small(folder / "small", arguments.small)
            row("generated", f"{arguments.small:,} sessions of {SMALL_BYTES:,} bytes")
            measure(Home(folder / "many", settings), folder / "small", server)


@dataclass(slots=True)
class Backfill:
    """A finished `recalld backfill`: its JSON, seconds, peak megabytes, and the chunks that had vectors at its end.

    `shown` has percents of its progress, each with the chunks that had their vectors then.
    """

    home: Home
    body: dict[str, Any] = field(default_factory=dict)
    wall: float = 0.0
    cpu: float = 0.0
    peak_mb: float = 0.0
    planned: float | None = None
    first_found: float | None = None
    finished: int = 0
    shown: list[tuple[int, int]] = field(default_factory=list)

    def run(self, folder: Path, *, until: float = float("inf")) -> Backfill:
        """Run it to its end, or interrupt it once so many chunks have vectors."""
        began_at, (master, slave) = time.monotonic(), pty.openpty()
        with subprocess.Popen(
            self.home.command("backfill", str(folder), "--json"),
            cwd=REPOSITORY,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=slave,
        ) as process:
            os.close(slave)
            progress = threading.Thread(target=self._watch_progress, args=(master, began_at))
            progress.start()
            while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                with reading(self.home.path) as reader:
                    if reader is not None:
                        self.finished = reader.counts().vectors_ready
                        if self.first_found is None and reader.search_text(WORD, 1):
                            self.first_found = time.monotonic() - began_at
                if self.finished >= until:
                    process.send_signal(signal.SIGINT)
                    until = float("inf")
                threading.Event().wait(0.1)
            assert process.stdout is not None
            output = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            progress.join()
        if process.returncode not in {0, 130}:
            sys.exit(f"backfill ended with {process.returncode}: {output.decode()}")
        self.body, self.wall = json.loads(output), time.monotonic() - began_at
        self.cpu, self.peak_mb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
        self.finished = self.body["result"]["vectorsReady"]
        return self

    def _watch_progress(self, terminal: int, began_at: float) -> None:
        try:
            while printed := os.read(terminal, 65_536):
                self.planned = self.planned or time.monotonic() - began_at
                for percent in re.findall(rb"(\d+)%  documents", printed)[-1:]:
                    self.shown.append((int(percent), self.finished))
        except OSError:  # the other end is closed
            os.close(terminal)


def measure(home: Home, folder: Path, server: InstantServer) -> Backfill:
    """Run a backfill, and once more; print their figures."""
    server.reset()
    done = Backfill(home).run(folder)
    estimate, chunks = done.body["estimate"], done.body["result"]["chunks"]
    row("backfill", f"{done.cpu:.1f} s CPU, {done.wall:.1f} s wall, peak {done.peak_mb:.0f} MB")
    row("  plan said, first passage found", f"after {done.planned or 0:.1f} s, {done.first_found or done.wall:.1f} s")
    row("  estimated", f"{estimate['chunks']:,} chunks of {chunks:,}, {estimate['requests']:,} requests")
    row("  sent", server.sent())
    for percent in (8, 30):
        shown, finished = min(done.shown, key=lambda pair: abs(pair[1] / chunks * 100 - percent))
        row(f"  share shown near {percent} %", f"{shown} % at {finished / chunks:.1%} of the chunks")
    again = Backfill(home).run(folder)
    row("  nothing to do", f"{again.cpu:.1f} s CPU, {again.wall:.1f} s wall")
    return done


def measure_interrupted(home: Home, folder: Path, percent: float, whole: Backfill) -> None:
    """Interrupt a backfill at so many percent of its vectors and resume it; print the CPU of both, and its begin."""
    first = Backfill(home).run(folder, until=whole.finished * percent / 100)
    second = Backfill(home).run(folder)
    more = (first.cpu + second.cpu) / whole.cpu - 1
    begins = f"the second begins at {second.shown[0][0]} %" if second.shown else "the second shows no progress"
    figures = f"{first.cpu:.1f} + {second.cpu:.1f} s CPU ({more:+.0%}), {begins}"
    row(f"interrupted at {first.finished / whole.finished:.0%}", figures)


def floors(folder: Path, home: Home) -> None:
    """Print the CPU of reading the files, of parsing their lines, and of inserting the chunks into a plain FTS5."""
    paths = sorted(folder.rglob("*.jsonl"))
    began_at = time.process_time()
    for path in paths:
        path.read_bytes()
    read_at = time.process_time()
    for path in paths:
        for line in path.read_bytes().splitlines():
            orjson.loads(line)
    parsed_at = time.process_time()
    source = apsw.Connection(str(next((home.path / "indexes").glob("*/*.sqlite"))))
    texts = list(source.execute("SELECT text FROM chunks"))
    source.close()
    target = apsw.Connection(str(home.folder / "floor.sqlite"))
    target.execute("CREATE VIRTUAL TABLE words USING fts5 (text, content = '', contentless_delete = 1)")
    insert_at = time.process_time()
    with target:
        target.executemany("INSERT INTO words (text) VALUES (?)", texts)
    inserted_at = time.process_time()
    target.close()
    seconds = (read_at - began_at, parsed_at - read_at, inserted_at - insert_at)
    row("floors: read, orjson, plain FTS5", ", ".join(f"{each:.1f} s CPU" for each in seconds))


def write_small(folder: Path, sessions: int) -> None:
    """Write that many sessions of all formats, each of its own words and filled up with a result of a tool."""
    for number in range(sessions):
        name, path = FORMATS[number % 4], folder / f"{number % 100}" / f"{number:06}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            message_line(name, message.role, f"{message.text} {number}", at=message.at)
            for message in conversation(SMALL_TURNS, seed=number)
        ]
        text = b"".join(lines)
        path.write_bytes(text + tool_line(name, "x" * max(0, SMALL_BYTES - len(text) - len(tool_line(name, "")))))


def write_transcripts(folder: Path, megabytes: float, file_megabytes: float, *, share: float) -> tuple[int, int]:
    """Write transcripts of all formats; return their bytes, and how many of them were said."""
    noise = "".join(random.Random(0).choices("abcdefghij klmnop(qrst)=uvwxyz_\n\t0123456789", k=MEGABYTE))
    sizes = [
        write_transcript(
            folder / f"{number % 20}" / f"{number:04}.jsonl", FORMATS[number % 4], number, noise, file_megabytes, share
        )
        for number in range(max(1, round(megabytes / file_megabytes)))
    ]
    return sum(size for size, _ in sizes), sum(said for _, said in sizes)


def write_transcript(path: Path, name: str, seed: int, noise: str, megabytes: float, share: float) -> tuple[int, int]:
    """Write one transcript of about that size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = random.Random(seed)
    said = 0
    # A turn says some 500 bytes.
    messages = conversation(int(megabytes * MEGABYTE * share / 480), seed=seed)
    with path.open("wb") as file:
        for place, message in enumerate(messages):
            said += len(message.text.encode())
            file.write(message_line(name, message.role, message.text, at=message.at))
            if place % MESSAGES_A_TOOL == 0:
                lacking = max(0, int(said / share) - file.tell())
                start = source.randrange(MEGABYTE - 1)
                file.write(tool_line(name, (noise[start:] + noise)[: min(lacking, MEGABYTE)]))
        return file.tell(), said


def tool_line(name: str, output: str) -> bytes:
    """Return a tool's result as the named format writes it."""
    at = BEGUN.isoformat()
    block = [{"type": "text", "text": output}]
    formats: dict[str, dict[str, Any]] = {
        "openclaw": {"type": "message", "id": "t", "message": {"role": "toolResult", "content": block}},
        "claude-code": {
            "type": "user",
            "uuid": "t",
            "sessionId": "s",
            "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": output}]},
        },
        "codex": {"type": "response_item", "payload": {"type": "function_call_output", "output": output}},
        "plain": {"role": "tool", "content": output},
    }
    return json.dumps({"timestamp": at, **formats[name]}).encode() + b"\n"


def row(name: str, value: str) -> None:
    print(f"{name:34s} {value}", flush=True)


if __name__ == "__main__":
    main()
