"""Time of `recalld search` from the shell, through a service and without one, and CPU time of one hook.

    python -m tests.benchmarks.search_startup [RUNS]

The service is a stand-in that proves itself and answers at once: the figure is the command's own time. Without it the
command reads the index of the sample workspace; "first" is the search that finds no compiled modules. A hook is
compared with a Python that does nothing.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from recalld.settings import load as configuration
from tests.daemon import REPOSITORY
from tests.raw_server import announce, answer, proof, raw_server
from tests.written_index import write_index

SECRET = "of this run"
HOOK = b'{"hook_event_name": "Stop", "transcript_path": "/sessions/a.jsonl"}'

#: As installed: with compiled modules, wherever this runs.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def search_ms(home: Path) -> float:
    command = [sys.executable, "-m", "recalld", "search", "sourdough", "--home", str(home)]
    started = time.perf_counter()
    environment = {**ENVIRONMENT, "PYTHONPYCACHEPREFIX": str(home / "compiled")}
    subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True)
    return (time.perf_counter() - started) * 1000


def cpu_ms(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=REPOSITORY, env=ENVIRONMENT, input=HOOK, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def report(name: str, figures: list[float]) -> None:
    print(f"{name}: best {min(figures):.0f} ms, median {statistics.median(figures):.0f}, worst {max(figures):.0f}")


def main(runs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, workspace = Path(folder), REPOSITORY / "deploy" / "sample-workspace"
        (home / "recalld.toml").write_text(
            f"provider = 'stub'\n[[agents]]\nid = 'main'\nworkspace = '{workspace}'\n", "utf-8"
        )
        write_index(configuration.load(home=str(home)).settings)
        print(f"no service, first: {search_ms(home):.0f} ms")
        report("no service", [search_ms(home) for _ in range(runs)])
        with raw_server(*[[proof(SECRET), answer(b'{"results": []}')]] * runs) as server:
            announce(home, server, secret=SECRET)
            report("through a service", [search_ms(home) for _ in range(runs)])
        hook = (str(Path(sys.executable).with_name("recalld")), "hook", "codex", "--home", str(home))
        pairs = [(cpu_ms(sys.executable, "-c", "pass"), cpu_ms(*hook)) for _ in range(runs)]
        bare, taken = (statistics.median(figures) for figures in zip(*pairs, strict=True))
        print(f"hook: {taken:.1f} ms of CPU, {taken / bare:.2f} times a bare Python ({bare:.1f} ms), medians")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
