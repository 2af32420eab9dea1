"""kill -9 while transcripts grow, are cut, rewritten and archived: the index is that of reading them once."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from memory.generations import Generations
from memory.store.options import StoreOptions
from tests.chaos.test_kills import processes
from tests.daemon import Daemon, recalld
from tests.embedding_server import EmbeddingServer
from tests.transcript_files import transcript
from tests.waiting import wait_until

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    from backports.zstd import compress

TARGETS = ("work", "watch", "broker")
FORMATS = ("openclaw", "claude-code", "codex", "plain")

#: Path, ordinal, first line, last line and text of a chunk.
Row = tuple[str, int, int, int, str]


class Talks:
    """Transcripts that go on, each towards an end that is known from the start."""

    def __init__(self, folder: Path, count: int, *, turns: int, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.left = {f"talk-{n}.jsonl": transcript(FORMATS[n % 4], turns, seed=n) for n in range(count)}
        folder.mkdir()

    def go_on(self) -> None:
        """Append somewhere, in the middle of a line as likely as not; now and then something worse."""
        for name in self.chance.sample(sorted(self.left), k=min(3, len(self.left))):
            rest = self.left[name]
            piece = rest[: self.chance.randrange(1, max(2, len(rest) // 3))]
            self.left[name] = rest[len(piece) :]
            with (self.folder / name).open("ab") as file:
                file.write(piece)
        if self.chance.random() < 0.3:
            self._disturb(self.folder / self.chance.choice(sorted(self.left)))

    def end(self) -> None:
        """Write what is left of each."""
        for name, rest in self.left.items():
            if (self.folder / name).exists():
                with (self.folder / name).open("ab") as file:
                    file.write(rest)

    def _disturb(self, path: Path) -> None:
        if not path.exists():
            return
        data = path.read_bytes()
        lines = data.splitlines(keepends=True)
        match self.chance.randrange(4):
            case 0:
                os.truncate(path, len(data) // 2)
            case 1:
                draft = path.with_name(f".{path.name}")
                draft.write_bytes(b"".join(lines[len(lines) // 3 :]))
                draft.replace(path)
            case 2:
                path.rename(path.with_name(f"{path.name}.reset.2026-11-{self.chance.randrange(10, 30)}T10-00-00.000Z"))
            case 3:
                path.with_name(f"old-{self.chance.randrange(10**6)}.jsonl.zst").write_bytes(compress(data))


def settled(daemon: Daemon) -> bool:
    state = daemon.status()
    differing = sum(state["disk"][name] for name in ("missing", "stale", "vanished", "growing"))
    lacking = state["index"]["vectorsPending"] + state["queue"]["pending"]
    return not differing and not lacking and not state["deadLetters"]


def rows_of(home: Path) -> list[Row]:
    """All chunks of transcripts."""
    reader = Generations(home / "indexes" / "main", StoreOptions()).open_reader()
    assert reader is not None
    rows: list[Row] = []
    for file in reader.files():
        stored = reader.chunks_of(file.key)
        texts = reader.chunk_rows([chunk.id for chunk in stored])
        rows += [(file.key.path, one.ordinal, one.start_line, one.end_line, texts[one.id].text) for one in stored]
    assert reader.check() == []
    reader.close()
    return sorted(rows)


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
                wait_until(lambda target=target: processes(daemon, target), timeout=30, what=target)
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


def test_three_kills_while_transcripts_grow(tmp_path: Path) -> None:
    killed(tmp_path, kills=3, talks=4, turns=12)


@pytest.mark.long
def test_a_great_many_kills_while_transcripts_grow(tmp_path: Path) -> None:
    killed(tmp_path, kills=36, talks=12, turns=60)
