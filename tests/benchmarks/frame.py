"""Frame of the benchmarks: homes and their commands, an endpoint that answers at once, generated notes, and /proc."""

from __future__ import annotations

import base64
import hashlib
import http.client
import http.server
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.daemon import REPOSITORY, clean_environment
from tests.stub_server import StubServer
from tests.waiting import wait_until

# 20,000 made-up words whose frequencies fall like those of a natural language (Zipf's law).
_PARTS = ["ka", "mo", "ti", "ra", "su", "ler", "din", "par", "vos", "en", "ix", "um", "bel"]
WORDS = ["".join(parts) for parts in itertools.islice(itertools.product(_PARTS, repeat=4), 20_000)]
CUMULATIVE_WEIGHTS = list(itertools.accumulate(1 / (rank + 3) for rank in range(len(WORDS))))

ENGLISH = [
    *("deploy", "gateway", "config", "memory", "index", "vector", "search"),
    *("embed", "provider", "token", "session"),
]
CHINESE = "今天我们讨论了数据库迁移的问题，决定先在测试环境部署新版本。"


def options(description: str | None) -> ArgumentParser:
    """Return a parser whose help is the benchmark's docstring, line by line."""
    return ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)


def percentile(times: list[float], share: int) -> float:
    """Return the percentile of that share."""
    return statistics.quantiles(times, n=100)[share - 1]


def notes(megabytes: float, *, share_of_chinese: float, seed: int = 7) -> list[str]:
    """Return daily notes of about 8 KB with headings, lists, fences, paragraphs and some Chinese."""
    source = random.Random(seed)
    documents: list[str] = []
    size = 0
    while size < megabytes * 1e6:
        lines = ["# A day", ""]
        length = 0
        while length < 8000:
            draw = source.random()
            if draw < 0.06:
                lines += [f"## {source.choice(ENGLISH)} {source.choice(ENGLISH)}", ""]
            elif draw < 0.1:
                lines += ["```sh", *(f"run --{word} {length}" for word in source.choices(ENGLISH, k=6)), "```"]
            elif draw < 0.1 + share_of_chinese:
                lines += [CHINESE * source.randint(1, 4), ""]
            elif draw < 0.6:
                lines += ["- " + " ".join(source.choices(ENGLISH, k=source.randint(4, 14)))]
            else:
                lines += [" ".join(source.choices(ENGLISH, k=source.randint(20, 90))) + ".", ""]
            length += len(lines[-1].encode()) + len(lines[-2].encode()) + 2
        documents.append("\n".join(lines) + "\n")
        size += len(documents[-1].encode())
    return documents


@dataclass(frozen=True, slots=True)
class Run:
    """A finished command: seconds of wall and CPU (with its children), peak resident megabytes of one process."""

    wall: float
    cpu: float
    peak_mb: float
    output: str

    @property
    def json(self) -> Any:
        """The output as JSON."""
        return json.loads(self.output)


class Home:
    """A home below a folder, with its configuration."""

    def __init__(self, folder: Path, settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path, self.config = folder, folder / "home", folder / "recalld.toml"
        self.config.write_text(settings, encoding="utf-8")

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of recalld in this home."""
        return [sys.executable, "-m", "recalld", "--config", str(self.config), "--home", str(self.path), *arguments]

    def run(self, *arguments: str) -> Run:
        """Run a command to its end; ends this process if it fails."""
        begun = time.monotonic()
        with subprocess.Popen(
            self.command(*arguments), cwd=REPOSITORY, env=clean_environment(), stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            output = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"{' '.join(arguments)} ended with {process.returncode}: {output}")
        return Run(time.monotonic() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run `up` or `serve` until the block ends; its lines are in the file `printed`."""
        (self.path / "run" / "service.json").unlink(missing_ok=True)
        with (self.folder / "printed").open("wb") as printed:
            process = subprocess.Popen(
                self.command(*arguments),
                cwd=REPOSITORY,
                env=clean_environment(),
                stdout=printed,
                stderr=subprocess.STDOUT,
            )
            try:
                yield process
            finally:
                stop(process)

    def service(self) -> Service:
        """Wait for the service of this home."""
        return Service(wait_until(self._port, timeout=120))

    def _port(self) -> int | None:
        try:
            return int(json.loads((self.path / "run" / "service.json").read_text("utf-8"))["port"])
        except (OSError, ValueError):
            return None


class Service:
    """One connection to a query service, with an access token in a fleet."""

    def __init__(self, port: int, *, token: str | None = None) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def read(self, path: str, body: object = None) -> bytes:
        """Return the answer to a GET, or to a POST with `body`."""
        text = json.dumps(body) if body is not None else None
        self._connection.request("POST" if text else "GET", path, text, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return content

    def ask(self, path: str, body: object = None) -> Any:
        """Return the answer's JSON."""
        return json.loads(self.read(path, body))

    def settled(self, agent: str = "main") -> bool:
        """Return True if an agent's documents are indexed with their vectors, and none is queued."""
        [state] = self.ask(f"/v1/status?agent={agent}")["agents"]
        disk, index = state["disk"], state["index"]
        behind = disk["missing"] + disk["settling"] + state["queue"]["pending"] + index["vectorsPending"]
        return index["files"] > 0 and behind == 0

    def seconds_until_found(self, folder: Path, word: str, agent: str = "main", **more: object) -> float:
        """Write a note and search for its word until it is found; return the seconds from the end of the write."""
        (folder / f"{word}.md").write_text(
            f"# Note\n\nThe {word} was decided today, because it was cheaper.\n", "utf-8"
        )
        begun = time.monotonic()

        def found() -> bool:
            answer = self.ask("/v1/search", {"query": word, "agent": agent, **more})
            threading.Event().wait(0.01)
            return any(word in passage["snippet"] for passage in answer["results"])

        wait_until(found, timeout=120, what=word)
        return time.monotonic() - begun


def stop(process: subprocess.Popen[bytes]) -> float:
    """End a process with SIGTERM; return the seconds that it takes."""
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=300)
    return time.monotonic() - begun


class InstantServer(StubServer):
    """OpenAI's embeddings API: a row of a fixed matrix for each text, at once or after `latency` seconds.

    `paid` counts digests of texts, `requests` the answers. A request with a text that holds `poison` is refused.
    """

    def __init__(self, dimensions: int = 1536) -> None:
        super().__init__()
        self.latency = 0.0
        self.poison: str | None = None
        self.requests = 0
        self.paid: Counter[bytes] = Counter()
        rows = np.random.default_rng(1).standard_normal((256, dimensions)).astype("<f4")
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        self._rows = [base64.b64encode(row.tobytes()).decode() for row in rows]
        self._lock = threading.Lock()

    @property
    def settings(self) -> str:
        """Return the lines of a configuration that names this server."""
        return f'provider = "openai"\nremote.base_url = "{self.root}/v1"\nremote.api_key = "benchmark"\n'

    def reset(self) -> None:
        """Begin to count anew."""
        self.requests = 0
        self.paid.clear()

    def sent(self) -> str:
        """Describe the requests so far."""
        inputs, distinct = sum(self.paid.values()), len(self.paid)
        return f"{self.requests:,} requests, {inputs:,} inputs, {distinct:,} distinct"

    def _serve(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        digests = [hashlib.blake2b(text.encode(), digest_size=12).digest() for text in body["input"]]
        with self._lock:
            self.requests += 1
            self.paid.update(digests)
        threading.Event().wait(self.latency)
        data = [
            {"object": "embedding", "index": place, "embedding": self._rows[digest[0]]}
            for place, digest in enumerate(digests)
        ]
        content: dict[str, Any] = {"object": "list", "data": data, "model": body["model"], "usage": {}}
        is_refused = self.poison is not None and any(self.poison in text for text in body["input"])
        answer = json.dumps({"error": {"message": "this text is refused"}} if is_refused else content).encode()
        handler.send_response(400 if is_refused else 200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)


def family(pid: int) -> list[int]:
    """Return the process and all that descend from it."""
    processes = [pid]
    with suppress(FileNotFoundError):  # it has ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text("ascii").split():
                processes += family(int(child))
    return processes


def role(pid: int) -> str:
    """Return the command that a process of recalld runs."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    commands = (word.decode() for word in words if word in {b"up", b"watch", b"work", b"serve"})
    return next(commands, "valkey" if b"valkey" in words[0] else "other")


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Meter:
    """Seconds since it was made, and processor time meanwhile: of this process, and of others with their children."""

    def __init__(self, *others: Sequence[int]) -> None:
        self._others = others
        self._begun = self._now()

    def _now(self) -> list[float]:
        return [time.monotonic(), time.process_time(), *(sum(map(_cpu_of_family, pids)) for pids in self._others)]

    def read(self, scale: float = 1.0) -> list[float]:
        """Return the seconds times `scale`: those of the clock, of this process, and of each of the others."""
        return [(now - begun) * scale for now, begun in zip(self._now(), self._begun, strict=True)]


def _cpu_of_family(pid: int) -> float:
    """Return the processor time of a process and its children, also of those that ended."""
    stats = (Path(f"/proc/{each}/stat").read_text("utf-8").rsplit(")", 1)[1].split() for each in family(pid))
    return sum(int(ticks) for fields in stats for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def peak_mb(*pids: int) -> list[int]:
    """Return the largest resident memory that each process ever had."""
    statuses = (Path(f"/proc/{pid}/status").read_text("utf-8") for pid in pids)
    return [int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) // 1024 for status in statuses]


def text_of(source: random.Random, words: int) -> str:
    """Return a text of made-up words."""
    return " ".join(source.choices(WORDS, cum_weights=CUMULATIVE_WEIGHTS, k=words))
