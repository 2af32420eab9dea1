"""Megabytes of transcripts folded a second, and the memory of the hard cases.

Run: python -m tests.benchmarks.bench_transcript_folding [--megabytes 100] [--huge]

Each case runs in a process of its own, so that its peak memory is its own. `--huge` adds a file of 2 GB.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from memory.transcripts.folding import TranscriptFold
from memory.transcripts.lines import read_lines

_WORDS = ["deploy", "gateway", "config", "memory", "index", "vector", "search", "embed", "provider", "token", "session"]
_CHINESE = "今天我们讨论了数据库迁移的问题，决定先在测试环境部署新版本。"


def realistic(megabytes: float, seed: int = 7) -> Iterator[bytes]:
    """Lines as OpenClaw writes them: about an eighth is what was said, the rest tool calls and their results."""
    source = random.Random(seed)
    at = datetime(2026, 2, 3, 9, tzinfo=UTC)
    written = 0

    def words(least: int, most: int) -> str:
        if source.random() < 0.25:
            return _CHINESE * source.randint(1, 6)
        return " ".join(source.choices(_WORDS, k=source.randint(least, most)))

    def line(message: dict[str, object]) -> bytes:
        nonlocal at, written
        at += timedelta(seconds=source.randint(2, 90))
        entry = {"type": "message", "id": "m", "parentId": "p", "timestamp": at.isoformat(), "message": message}
        made = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        written += len(made)
        return made

    while written < megabytes * 1e6:
        yield line({"role": "user", "content": [{"type": "text", "text": words(10, 80)}]})
        for _ in range(source.randint(0, 3)):
            call = {"type": "toolCall", "name": "exec", "arguments": {"command": words(5, 20)}}
            yield line({"role": "assistant", "content": [{"type": "thinking", "thinking": words(20, 90)}, call]})
            result = "\n".join(f"{source.getrandbits(32):08x} {words(3, 6)}" for _ in range(source.randint(5, 90)))
            yield line({"role": "toolResult", "content": [{"type": "text", "text": result}]})
        said = "\n\n".join(words(20, 120) for _ in range(source.randint(1, 4)))
        yield line({"role": "assistant", "content": [{"type": "text", "text": said}], "usage": {"input": 1}})


def one_message(megabytes: float, piece: str) -> Iterator[bytes]:
    """A single line that is a message of about that size."""
    text = piece * int(megabytes * 1e6 / len(piece.encode()))
    yield json.dumps({"role": "user", "content": text}, ensure_ascii=False).encode() + b"\n"


def one_result(megabytes: float) -> Iterator[bytes]:
    """A single line that is a tool's result of that size."""
    message = {"role": "toolResult", "content": [{"type": "text", "text": "x" * int(megabytes * 1e6)}]}
    yield json.dumps({"type": "message", "message": message}).encode() + b"\n"


def too_long(megabytes: float) -> Iterator[bytes]:
    """A line of that size that never becomes an entry, and a message below it."""
    for _ in range(int(megabytes)):
        yield b"x" * 1_000_000
    yield b'\n{"role": "user", "content": "after it"}\n'


def fold_file(path: str, answer: multiprocessing.Queue[tuple[float, float, int, int, int]]) -> None:
    """Fold a file as the indexer does: chunks are taken, and let go, every thousand lines."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    fold = TranscriptFold(tokens=400, overlap=80, max_bytes=8191, redact=str)
    descriptor = os.open(path, os.O_RDONLY)
    chunks = 0
    for number, line in enumerate(read_lines(descriptor, offset=0, end=None, compressed=path.endswith(".zst"))):
        fold.feed(line)
        if number % 1000 == 999:
            chunks += len(fold.take())
    chunks += len(fold.take()) + len(fold.open())
    spent = time.process_time() - begun
    os.close(descriptor)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer.put((spent, (peak - before) / 1024, fold.messages, chunks, len(fold.state())))


def write_case(name: str, megabytes: float, path: str) -> None:
    """Write the named case's file."""
    cases: dict[str, Callable[[], Iterator[bytes]]] = {
        "realistic": lambda: realistic(megabytes),
        "one message, English": lambda: one_message(50, "word after word. "),
        "one message, Chinese": lambda: one_message(50, _CHINESE),
        "one message, emoji": lambda: one_message(50, "a line with a \U0001f642\n"),
        "one tool result": lambda: one_result(50),
        "one line too long": lambda: too_long(200),
        "huge": lambda: realistic(2000),
    }
    with Path(path).open("wb") as file:
        file.writelines(cases[name]())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--huge", action="store_true")
    arguments = parser.parse_args()
    names = ["realistic", "one message, English", "one message, Chinese", "one message, emoji", "one tool result"]
    names += ["one line too long", *(["huge"] if arguments.huge else [])]
    spawning = multiprocessing.get_context("spawn")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "x.jsonl")
            # This process stays small: a peak is handed down to the processes that it starts.
            writing = spawning.Process(target=write_case, args=(name, arguments.megabytes, str(path)))
            writing.start()
            writing.join()
            size = path.stat().st_size / 1e6
            answer: multiprocessing.Queue[tuple[float, float, int, int, int]] = spawning.Queue()
            folding = spawning.Process(target=fold_file, args=(str(path), answer))
            folding.start()
            spent, peak, messages, chunks, state = answer.get()
            folding.join()
        print(
            f"{name:20} {size:7.1f} MB: {spent:6.2f} s CPU = {size / spent:7.1f} MB/s, {peak:6.0f} MB above the start, "
            f"{messages} messages, {chunks} chunks, state {state} bytes"
        )


if __name__ == "__main__":
    main()
