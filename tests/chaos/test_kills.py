"""kill -9 of everything, at random, while notes change: nothing is lost, nothing is paid for twice."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.daemon import Daemon
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until

ROUNDS = 24
TARGETS = ("watch", "work", "serve", "broker")


@pytest.mark.long
def test_everything_on_disk_is_found_after_any_number_of_kills(tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED", time.time_ns() % 1_000_000))
    chance, hits = random.Random(seed), Counter[str]()
    workspace = tmp_path / "workspace"
    (workspace / "memory").mkdir(parents=True)
    with EmbeddingServer(latency=0.05) as server:
        remote = f'[remote]\nbase_url = "{server.url}"\napi_key = "chaos"\n'
        with Daemon(tmp_path / "home", workspace, provider="openai", config=remote) as daemon:
            for number in range(ROUNDS):
                write_some(daemon, chance, number)
                target = chance.choice(TARGETS) if number >= len(TARGETS) else TARGETS[number]
                wait_until(lambda target=target: processes(daemon, target), what=target)
                if chance.random() < 0.5:
                    moment = time.monotonic() + chance.random()
                    wait_until(lambda moment=moment: time.monotonic() > moment)
                for pid in processes(daemon, target):
                    os.kill(pid, signal.SIGKILL)
                    hits[target] += 1
            print(f"seed {seed}, kills {dict(hits)}")  # noqa: T201 - whoever repeats a run needs them
            assert all(hits[target] for target in TARGETS), hits
            wait_until(lambda: daemon.running() and settled(daemon), timeout=120, what=f"all well (seed {seed})")
            for path in sorted(workspace.glob("memory/*.md")):
                word = path.read_text().split()[-1]
                assert daemon.found(word, f"memory/{path.name}"), f"{path.name} is not found (seed {seed})"
            state = daemon.status()
            assert state["index"]["files"] == len(list(workspace.glob("memory/*.md")))
            assert state["index"].get("vectorsPending", 0) == 0
            deep = daemon.run("status", "--deep", "--json").stdout
            assert '"integrity": []' in deep or '"integrity":[]' in deep, deep
            # What was in flight when a worker died is paid for again; nothing else is.
            assert server.inputs - server.distinct <= 200 * hits["work"], (server.inputs, server.distinct, hits)


def settled(daemon: Daemon) -> bool:
    """Whether status says that all is well and nothing is left to do."""
    state = daemon.status()
    differing = sum(state["disk"][name] for name in ("missing", "stale", "vanished"))
    return bool(state["ok"] and not differing and not state["queue"]["pending"])


def write_some(daemon: Daemon, chance: random.Random, number: int) -> None:
    for _ in range(chance.randrange(1, 5)):
        name = f"memory/note-{chance.randrange(20)}.md"
        words = " ".join(f"word{chance.randrange(5000)}" for _ in range(chance.randrange(20, 600)))
        daemon.write(name, f"# Round {number}\n\n{words}\n\nlast{number}x{chance.randrange(10**9)}\n")
    victim = daemon.workspace / f"memory/note-{chance.randrange(20)}.md"
    if chance.random() < 0.3:
        victim.unlink(missing_ok=True)


def processes(daemon: Daemon, target: str) -> list[int]:
    daemon.running()
    try:
        return [daemon.broker_pid()] if target == "broker" else daemon.children(target)
    except AssertionError:
        return []
