"""Time of `recalld search` from the shell, through a service and without one, and CPU time of one hook.

    python tests/benchmarks/search_startup.py [RUNS]

The service is a stand-in that proves itself and answers at once: the first figure is the command's own time. The second
one reads the index of the sample workspace; "first" is the search that finds no compiled modules. Of both the CPU time
is shown as well. A hook is compared with a Python that does nothing.
"""

from __future__ import annotations

import hmac
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


SECRET = "of this run"


class Answering(BaseHTTPRequestHandler):
    """Finds nothing, at once."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        nonce = self.path.rpartition("/")[2].encode()
        self._say(json.dumps({"proof": hmac.new(SECRET.encode(), nonce, "sha256").hexdigest()}).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._say(b'{"results": []}')

    def _say(self, text: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def search_ms(home: Path) -> float:
    # As installed: with compiled modules, wherever this runs.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(home / "compiled")
    command = [sys.executable, "-m", "recalld", "search", "sourdough", "--home", str(home)]
    started = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True)
    return (time.perf_counter() - started) * 1000


def cpu_ms(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    hook = b'{"hook_event_name": "Stop", "transcript_path": "/sessions/a.jsonl"}'
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, cwd=ROOT, env=environment, input=hook, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def report(name: str, figures: list[float]) -> None:
    print(f"{name}: best {min(figures):.0f} ms, median {statistics.median(figures):.0f}, worst {max(figures):.0f}")


def main(runs: int) -> None:
    from recalld.settings import load as configuration
    from tests.written_index import write_index

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        workspace = ROOT / "deploy" / "sample-workspace"
        (home / "recalld.toml").write_text(
            f"provider = 'stub'\n[[agents]]\nid = 'main'\nworkspace = '{workspace}'\n", "utf-8"
        )
        write_index(configuration.load(home=str(home)).settings)
        print(f"no service, first: {search_ms(home):.0f} ms")
        report("no service", [search_ms(home) for _ in range(runs)])
        server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        announced = {"host": "127.0.0.1", "port": server.server_address[1], "pid": os.getpid(), "secret": SECRET}
        (home / "run").mkdir(exist_ok=True)
        (home / "run" / "service.json").write_text(json.dumps(announced), "utf-8")
        report("through a service", [search_ms(home) for _ in range(runs)])
        hook = (str(Path(sys.executable).with_name("recalld")), "hook", "codex", "--home", str(home))
        pairs = [(cpu_ms(sys.executable, "-c", "pass"), cpu_ms(*hook)) for _ in range(runs)]
        bare, taken = (statistics.median(figures) for figures in zip(*pairs, strict=True))
        print(f"hook: {taken:.1f} ms of CPU, {taken / bare:.2f} times a bare Python ({bare:.1f} ms), medians")
        server.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
