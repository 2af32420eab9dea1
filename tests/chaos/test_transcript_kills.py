"""kill -9 while transcripts grow, are cut, rewritten and archived: the index is that of reading them once."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.talks import Talks, rows_of
from tests.chaos.test_kills import processes
from tests.daemon import Daemon, recalld
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until

TARGETS = ("work", "watch", "broker")


def settled(daemon: Daemon) -> bool:
    state = daemon.status()
    differing = sum(state["disk"][name] for name in ("missing", "stale", "vanished", "growing"))
    lacking = state["index"]["vectorsPending"] + state["queue"]["pending"]
    return not differing and not lacking and not state["deadLetters"]


def killed(tmp_path: Path, *, kills: int, talks: int, turns: int) -> None:
    seed = int(os.environ.get("CHAOS_SEED", time.time_ns() % 1_000_000))
    print(f"seed {seed}")  # noqa: T201 - whoever repeats a run needs it
    hits = Counter[str]()
    sessions = tmp_path / "sessions"
    said = Talks(sessions, talks, turns=turns, seed=seed)
    (tmp_path / "workspace").mkdir()
    with EmbeddingServer(latency=0.02) as server:
        config = (
            f'[remote]\nbase_url = "{server.url}"\napi_key = "chaos"\n'
            f'[[agents]]\nid = "main"\nworkspace = "{tmp_path / "workspace"}"\nsessions = ["{sessions}"]\n'
            "sync.sessions.quiet_seconds = 0.3\nsync.sessions.delta_bytes = 2000\n"
        )
        with Daemon(tmp_path / "home", tmp_path / "workspace", provider="openai", config=config) as daemon:
            for number in range(kills):
                said.go_on()
                target = TARGETS[number % len(TARGETS)]
                wait_until(lambda target=target: processes(daemon, target), what=target)
                moment = time.monotonic() + said.chance.random()
                wait_until(lambda moment=moment: time.monotonic() > moment)
                for pid in processes(daemon, target):
                    os.kill(pid, signal.SIGKILL)
                    hits[target] += 1
            assert all(hits[target] for target in TARGETS[:kills]), hits
            said.end()
            wait_until(lambda: daemon.running() and settled(daemon), timeout=120, what=f"all well (seed {seed})")
            # What was in flight when a worker died is paid for again; nothing else is.
            assert server.inputs - server.distinct <= 200 * hits["work"], (server.inputs, server.distinct, hits)
    fresh = tmp_path / "fresh"
    once = recalld(
        "--config", str(tmp_path / "home.toml"), "index", home=fresh, environment={"RECALLD_PROVIDER": "none"}
    )
    assert once.returncode == 0, once.stderr
    on_disk = {path for path, *_ in rows_of(fresh)}
    assert rows_of(fresh) == [row for row in rows_of(tmp_path / "home") if row[0] in on_disk], f"seed {seed}"


@pytest.mark.long
def test_a_great_many_kills_while_transcripts_grow(tmp_path: Path) -> None:
    killed(tmp_path, kills=36, talks=12, turns=60)
