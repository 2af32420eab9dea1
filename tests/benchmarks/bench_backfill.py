"""Costs of a backfill of old transcripts: time, memory of the command with its own workers, and texts sent.

    python -m tests.benchmarks.bench_backfill [--megabytes 200] [--file-megabytes 2] [--said 12] [--dimensions 1536]

Generates transcripts of all formats as real ones are: so many percent were said, the rest are results of tools. Then
`recalld backfill` runs as a child in a home of its own, against an OpenAI-compatible server in this process that
answers at once. Printed are the estimate, seconds, MB/s, the child's peak memory (its broker aside) and inputs against
distinct texts; then what the same command costs when there is nothing left to do.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import http.server
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from tests.daemon import REPOSITORY, clean_environment
from tests.transcript_files import BEGUN, FORMATS, conversation, message_line

MEGABYTE = 1_000_000

#: Messages between two results of tools.
MESSAGES_A_TOOL = 2


def main() -> None:
    """Generate, run twice, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=200.0)
    parser.add_argument("--file-megabytes", type=float, default=2.0)
    parser.add_argument("--said", type=float, default=12.0, help="percent")
    parser.add_argument("--dimensions", type=int, default=1536)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as name, CountingServer(arguments.dimensions) as server:
        folder = Path(name)
        (folder / "workspace").mkdir()
        size, said = generate(folder / "old", arguments.megabytes, arguments.file_megabytes, share=arguments.said / 100)
        print(f"generated  {size / MEGABYTE:,.0f} MB, {said / size:.1%} of it said")
        config = folder / "recalld.toml"
        config.write_text(
            f'provider = "openai"\nremote.base_url = "{server.url}"\nremote.api_key = "a-key"\n'
            f'[[agents]]\nid = "main"\nworkspace = "{folder / "workspace"}"\n'
        )
        for what in ("backfill", "again"):
            run = recalld("--config", str(config), "--home", str(folder / "home"), "backfill", str(folder / "old"))
            answer = json.loads(run.printed)
            estimate, result = answer["estimate"], answer["result"]
            print(
                f"{what:<9}  {run.seconds:.1f} s wall, {run.cpu:.1f} s CPU, {size / MEGABYTE / run.seconds:.1f} MB/s, "
                f"peak {run.peak_megabytes:.0f} MB; {answer['transcripts']:,} transcripts"
            )
            print(
                f"           estimated {estimate['messages']:,} messages, {estimate['chunks']:,} chunks, "
                f"{estimate['toEmbed']:,} inputs; indexed {result['chunks']:,} chunks"
            )
            sent, distinct = sum(server.paid.values()), len(server.paid)
            print(f"           sent {sent:,} inputs, {distinct:,} distinct, in {server.requests:,} requests")


@dataclass(frozen=True)
class Run:
    """One command that ran as a child."""

    printed: str
    seconds: float
    cpu: float
    peak_megabytes: float


def recalld(*arguments: str) -> Run:
    """Run a command with --json and measure it."""
    command = [sys.executable, "-m", "recalld", *arguments, "--json"]
    begun = time.monotonic()
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        printed = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, printed
    return Run(printed, time.monotonic() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def generate(folder: Path, megabytes: float, file_megabytes: float, *, share: float) -> tuple[int, int]:
    """Write transcripts; returns their bytes, and how many of them were said."""
    folder.mkdir()
    noise = "".join(random.Random(0).choices("abcdefghij klmnop(qrst)=uvwxyz_\n\t0123456789", k=MEGABYTE))
    size = said = 0
    for number in range(max(1, round(megabytes / file_megabytes))):
        written, spoken = write_transcript(
            folder / f"{number % 20}" / f"{number}.jsonl", FORMATS[number % 4], number, noise, file_megabytes, share
        )
        size, said = size + written, said + spoken
    return size, said


def write_transcript(path: Path, name: str, seed: int, noise: str, megabytes: float, share: float) -> tuple[int, int]:
    """One transcript of about that size."""
    path.parent.mkdir(exist_ok=True)
    source = random.Random(seed)
    size = said = 0
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
        size = file.tell()
    return size, said


def tool_line(name: str, output: str) -> bytes:
    """A tool's result as the named format writes it."""
    at = BEGUN.isoformat()
    block = [{"type": "text", "text": output}]
    made: dict[str, dict[str, Any]] = {
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
    return json.dumps({"timestamp": at, **made[name]}).encode() + b"\n"


class CountingServer:
    """Embeds at once: a row of a fixed matrix a text. `paid` counts digests of texts, `requests` what came."""

    def __init__(self, dimensions: int) -> None:
        self.paid: Counter[bytes] = Counter()
        self.requests = 0
        rows = np.random.default_rng(1).standard_normal((256, dimensions)).astype("<f4")
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        encoded = [base64.b64encode(row.tobytes()).decode() for row in rows]
        lock = threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                texts = [hashlib.blake2b(text.encode(), digest_size=12).digest() for text in body["input"]]
                with lock:
                    outer.requests += 1
                    outer.paid.update(texts)
                data = [
                    {"object": "embedding", "index": place, "embedding": encoded[digest[0]]}
                    for place, digest in enumerate(texts)
                ]
                answer = json.dumps({"object": "list", "data": data, "model": body["model"], "usage": {}}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


if __name__ == "__main__":
    main()
