"""A provider that limits, fails and is interrupted: every document indexed, nothing paid twice, no storm."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.daemon import Daemon
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until
from workers.queue.quarantine import MOST_CRASHES

WORDS = [f"word{number}" for number in range(2_000)]


def made(tmp_path: Path) -> Path:
    (tmp_path / "workspace" / "memory").mkdir(parents=True)
    return tmp_path / "workspace"


def write_notes(daemon: Daemon, count: int, *, words: int, seed: int, first: int = 0) -> None:
    chance = random.Random(seed)
    for number in range(first, first + count):
        text = " ".join(chance.choices(WORDS, k=words))
        daemon.write(f"memory/note-{number}.md", f"# Note {number}\n\n{text}\n")


def embedded(daemon: Daemon, notes: int, *, kills: int = 0) -> bool:
    """Return True if each note has its vectors. What was being worked on at five kills may be given up."""
    daemon.running()
    state = daemon.status()
    index, letters, spared = state["index"], len(state["deadLetters"]), kills // MOST_CRASHES
    return bool(
        index["files"] + letters >= notes
        and index["vectorsReady"] + index["vectorsRefused"] == index["chunks"] > 0
        and not state["queue"]["pending"]
        and index["vectorsRefused"] <= spared
        and letters <= spared
    )


def await_vectors(daemon: Daemon, notes: int, *, what: str, kills: int = 0) -> None:
    """Wait until each note has its vectors; a failure says how far they are."""
    try:
        wait_until(lambda: embedded(daemon, notes, kills=kills), timeout=240, what=what)
    except AssertionError as error:
        error.add_note(json.dumps(daemon.status())[:4_000])
        raise


def config(server: EmbeddingServer, *, processes: int = 1) -> str:
    # `provider` is at the top of the file; tables follow.
    return f'[workers]\nprocesses = {processes}\n[remote]\nbase_url = "{server.url}"\napi_key = "chaos"\n'


def unreliable(tmp_path: Path, *, notes: int, words: int, most_inputs: int) -> None:
    server = EmbeddingServer(
        # Two processes, each with remote.concurrency requests at once.
        senders=8,
        share_429=0.2,
        share_500=0.1,
        retry_after=0.5,
        most_inputs=most_inputs,
        latency=0.01,
        seed=notes,
    )
    with (
        server,
        Daemon(tmp_path / "home", made(tmp_path), provider="openai", config=config(server, processes=2)) as daemon,
    ):
        write_notes(daemon, notes, words=words, seed=1)
        await_vectors(daemon, notes, what="every vector")
        assert server.failures[429], "nothing was limited: this shows nothing"
        assert server.failures[500], "nothing failed: this shows nothing"
        # "memory" is what each process may ask once to know whether it is the endpoint that refuses.
        assert server.paid_twice <= {"memory"}, "a vector was paid twice"
        assert server.in_cool_down == 0, f"{server.in_cool_down} requests left during a cool-down"


def killed(tmp_path: Path, *, notes: int, words: int, kills: int) -> None:
    """kill -9 of the workers while requests are under way, again and again."""
    seed = int(os.environ.get("CHAOS_SEED", time.time_ns() % 1_000_000))
    chance = random.Random(seed)
    server = EmbeddingServer(latency=0.1, most_inputs=32)
    with server, Daemon(tmp_path / "home", made(tmp_path), provider="openai", config=config(server)) as daemon:
        write_notes(daemon, notes, words=words, seed=2)
        for _ in range(kills):
            paid = server.inputs + chance.randrange(1, 200)
            wait_until(
                lambda paid=paid: server.inputs > paid or embedded(daemon, notes, kills=kills), what="some progress"
            )
            (worker,) = wait_until(lambda: daemon.children("work"))
            os.kill(worker, signal.SIGKILL)
            wait_until(lambda worker=worker: worker not in daemon.children("work"))
        await_vectors(daemon, notes, what=f"every vector (seed {seed})", kills=kills)
        # The requests in flight of a worker that dies, remote.concurrency of them at most, are paid again.
        assert server.inputs - server.distinct <= server.most_inputs * 4 * kills, (server.inputs, server.distinct, seed)
        assert server.distinct > kills, "nothing was embedded: this shows nothing"


@pytest.mark.long
def test_limits_and_failures_at_random_lose_nothing_and_cost_nothing_twice(tmp_path: Path) -> None:
    unreliable(tmp_path, notes=80, words=60, most_inputs=8)


@pytest.mark.long
def test_two_thousand_notes_through_limits_and_failures(tmp_path: Path) -> None:
    unreliable(tmp_path, notes=2_000, words=60, most_inputs=64)


@pytest.mark.long
def test_workers_killed_again_and_again_over_two_thousand_notes(tmp_path: Path) -> None:
    killed(tmp_path, notes=2_000, words=60, kills=8)
