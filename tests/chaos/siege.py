"""A whole recalld whose processes are killed while notes and transcripts change, and what must hold all the time."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import redis

from memory.index.file_generations import FileGenerations
from memory.store.options import StoreOptions
from recalld.client import Client, ClientError
from schemas.errors import BrokerUnavailable
from schemas.ports import Event
from schemas.settings import Settings
from tests.chaos.kill_points import KillPoint, Plan
from tests.chaos.paying import Payments
from tests.chaos.talks import Talks, rows_of
from tests.daemon import Daemon, arguments_of, descendants, recalld
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until
from workers.queue.connection import connect, namespace
from workers.queue.job_queue import EventQueue
from workers.queue.names import QUEUES, Keys
from workers.queue.pending import PendingSet

#: What is a matter of tens of seconds in a product that dies once a month.
IMPATIENCE = {
    "recalld.up.supervisor:LONGEST_PAUSE_SECONDS": 0.2,
    "workers.maintenance:SWEEP_SECONDS": 1.0,
    "workers.queue.broker:HEARTBEAT_TIMEOUT_MS": 4_000,
    "producers.run:EPOCH_SECONDS": 1.0,
}

#: Who may be killed at any moment.
TARGETS = ("watch", "work", "serve", "broker")

#: Seconds after which what should come has not: a loaded machine is slow, a stranded document is for ever.
PATIENCE = 240.0


class Siege:
    """Use it as a context manager; `kills` counts by point, or by process for those killed at any moment."""

    def __init__(self, tmp_path: Path, points: tuple[KillPoint, ...], *, seed: int, notes: int, talks: int) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.kills = Counter[str]()
        self.faults = Counter[str]()
        self.documents = 0
        self.losses: list[str] = []
        self.torn: list[str] = []
        self._tmp_path = tmp_path
        self._notes = notes
        self._edits = 0
        self.workspace = tmp_path / "workspace"
        (self.workspace / "memory").mkdir(parents=True)
        self.said = Talks(tmp_path / "sessions", talks, turns=30, seed=seed)
        self.home = tmp_path / "home"
        self.plan = Plan(tmp_path / "plan", points, constants=IMPATIENCE)
        self.server = EmbeddingServer(latency=0.02)
        self.payments = Payments(self.server, self.home / "cache" / "embeddings.sqlite")
        self._commands: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.server.__enter__()
        config = (
            f'[remote]\nbase_url = "{self.server.url}"\napi_key = "chaos"\n[workers]\nprocesses = 2\n'
            f'[[agents]]\nid = "main"\nworkspace = "{self.workspace}"\nsessions = ["{self.said.folder}"]\n'
            "sync.sessions.quiet_seconds = 0.3\nsync.sessions.delta_bytes = 2000\n"
        )
        self.daemon = Daemon(
            self.home, self.workspace, provider="openai", config=config, environment=self.plan.environment()
        )
        self.daemon.start()
        settings = Settings(home=self.home)
        self.client: Any = connect(settings)
        self.keys = Keys(namespace(settings))
        self.marks = PendingSet(self.client, self.keys)
        return self

    def __exit__(self, *_: object) -> None:
        for command in self._commands:
            command.kill()
            command.wait()
        # Nobody has to drain any more.
        if self.daemon.process is not None and self.daemon.process.poll() is None:
            below = descendants(self.daemon.process.pid)
            self.daemon.kill()
            for pid in {*below, self._broker()} - {None}:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        self.client.close()
        self.server.__exit__()

    # What happens meanwhile

    def change(self) -> None:
        """Write some notes, delete one now and then, let transcripts go on."""
        for _ in range(self.chance.randrange(1, 4)):
            self._write_note()
        if self.chance.random() < 0.2:
            (self.workspace / f"memory/note-{self.chance.randrange(self._notes)}.md").unlink(missing_ok=True)
        self._go_on()

    def do(self, deed: str) -> None:
        """Do what makes a process come by a kill point."""
        match deed:
            case "note":
                self._write_note()
            case "transcript":
                self._go_on()
            case "compaction":
                self._go_on()
                path = self.said.compact()
                if path is not None:
                    self._tell(Event("compaction", "main", (str(path),)))
            case "event":
                self._tell(Event("reconcile", "main", ()))
            case "rebuild":
                self._rebuild()
            case "up":
                self.kill_up()
            case "search":
                # A kill in the middle is what is asked for.
                threading.Thread(target=self._search, args=(self._marker(),), daemon=True).start()

    def _write_note(self) -> None:
        self._edits += 1
        number = self.chance.randrange(self._notes)
        words = " ".join(f"word{self.chance.randrange(5000)}" for _ in range(self.chance.randrange(20, 400)))
        self.daemon.write(f"memory/note-{number}.md", f"# Edit {self._edits}\n\n{words}\n\n{self._marker()}\n")

    def _go_on(self) -> None:
        if sum(map(len, self.said.left.values())) < 40_000:
            self.said.begin(f"talk-{len(self.said.left)}.jsonl", turns=30, seed=self.seed + len(self.said.left))
        self.said.go_on()

    def _rebuild(self) -> None:
        """`recalld rebuild`, one at a time; it waits until the new generation answers."""
        self._commands = [command for command in self._commands if command.poll() is None]
        if not self._commands:
            self._commands.append(
                self.daemon.started(
                    "rebuild",
                    environment=self.plan.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )

    def _tell(self, event: Event) -> None:
        try:
            EventQueue(self.client, self.keys).put(event)
        except BrokerUnavailable:
            self.faults["an event that found no broker"] += 1

    def _marker(self) -> str:
        return f"last{self._edits}x{self.seed}"

    def _search(self, query: str) -> list[str]:
        """The paths that the query service finds, nothing while it is away."""
        client = Client.at_home(self.home)
        if client is None:
            return []
        with client:
            try:
                return [found["path"] for found in client.search(query, max_results=10, min_score=0.0)["results"]]
            except ClientError:
                return []

    # Killing

    def kill_at(self, point: KillPoint) -> None:
        """Kill at a named point."""
        self.daemon.running()
        victim = wait_until(self._broker, timeout=PATIENCE, what="broker") if point.victim == "broker" else None
        self.plan.arm(point, victim=victim)
        self.do(point.deed)
        again = time.monotonic()

        def taken() -> int | None:
            nonlocal again
            waited = time.monotonic() - again
            # What was done may have met what the kill before left. Done again too soon it undoes what it did: a slow
            # machine sees a transcript that was cut and has grown since as one that has grown.
            if waited > (2.0 if self._at_rest() else 20.0):
                again = time.monotonic()
                self.do(point.deed)
            self.daemon.running()
            return self.plan.taken(point)

        died = wait_until(taken, timeout=PATIENCE, what=f"somebody passes: {point.name} (seed {self.seed})")
        self._gone(victim or died)
        self.kills[point.name] += 1

    def kill_any(self, target: str) -> None:
        """Kill all processes of a kind at any moment."""
        pids = wait_until(lambda: self.processes(target), timeout=PATIENCE, what=target)
        _pause(self.chance.random() * 0.5)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            self._gone(pid)
            self.kills[f"{target}, at any moment"] += 1

    def kill_up(self) -> None:
        """Kill the supervisor; what it started ends by itself while the next one starts."""
        self.daemon.kill()
        self.kills["up"] += 1
        self.daemon.start()

    def lose_the_brokers_file(self) -> int:
        """Kill the broker and delete what it keeps; returns its process id."""
        [pid] = wait_until(lambda: self.processes("broker"), timeout=PATIENCE, what="broker")
        os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.home / "broker" / "appendonlydir")
        self._gone(pid)
        self.kills["broker, with its file"] += 1
        self.faults["the broker's file is lost"] += 1
        return pid

    def processes(self, target: str) -> list[int]:
        self.daemon.running()
        if target == "broker":
            pid = self._broker()
            return [pid] if pid is not None else []
        return self.daemon.children(target)

    def everybody(self) -> list[int]:
        """Every process of this recalld, the broker last."""
        assert self.daemon.process is not None
        broker = self.daemon.broker_pid()
        below = [pid for pid in descendants(self.daemon.process.pid) if pid != broker]
        return [self.daemon.process.pid, *below, broker]

    def _broker(self) -> int | None:
        try:
            return self.daemon.broker_pid()
        except AssertionError:
            return None

    def _gone(self, pid: int) -> None:
        wait_until(lambda: arguments_of(pid) == [""], timeout=PATIENCE, what=f"process {pid} is gone")

    # What must hold

    def check(self) -> None:
        """At every moment: the tables of every generation agree, the file is whole, and nothing kept is paid again."""
        generations = FileGenerations(self.home / "indexes" / "main", StoreOptions())
        for name in {generations.current(), generations.next()} - {None}:
            reader = generations.open_named(str(name))
            if reader is not None:
                found = reader.check()
                self.torn += [f"{name}: {sentence}" for sentence in found]
                reader.close()
        self.torn += [str(path) for path in self.home.rglob("*.corrupt-*")]
        self.payments.look()
        assert not self.torn, f"{self.torn} (seed {self.seed}, kills {dict(self.kills)})"

    def settle(self) -> None:
        """Check a quiet world: everything on disk is searchable, and nothing waits anywhere."""
        self.wait_for(self._settled, what="all well")
        self.wait_for(lambda: not self._stranded(), what="no job is left")
        for path in sorted(self.workspace.glob("memory/*.md")):
            name, marker = f"memory/{path.name}", path.read_text().split()[-1]
            try:
                wait_until(lambda name=name, marker=marker: name in self._search(marker))
            except AssertionError:
                self.losses.append(name)
            self.documents += 1
        assert not self.losses, f"{self.losses} (seed {self.seed}, kills {dict(self.kills)})"
        self.check()

    def wait_for(self, what_holds: Callable[[], Any], *, what: str) -> None:
        try:
            wait_until(lambda: self.daemon.running() and what_holds(), timeout=PATIENCE)
        except AssertionError as error:
            raise AssertionError(
                f"not {what} (seed {self.seed}, kills {dict(self.kills)}): {self.status()}, {self._stranded()}"
            ) from error

    def end(self) -> None:
        """Let every transcript end, and compare the index with one that was made in one go."""
        self.said.end()
        self.settle()
        fresh = self._tmp_path / "fresh"
        once = recalld(
            "--config", str(self.daemon.config), "index", home=fresh, environment={"RECALLD_PROVIDER": "none"}
        )
        assert once.returncode == 0, once.stderr
        read_once = rows_of(fresh)
        on_disk = {path for path, *_ in read_once}
        lived_through = [row for row in rows_of(self.home) if row[0] in on_disk]
        assert read_once == lived_through, f"the index is not that of reading everything once (seed {self.seed})"
        self.documents += len(on_disk)

    def report(self) -> str:
        """Return the lines that `make chaos` prints."""
        payments = self.payments
        counts = {
            "kills": self.kills.total(),
            "faults": self.faults.total(),
            "documents": self.documents,
            "losses": len(self.losses),
            "torn indexes": len(self.torn),
            "double payments": len(payments.double),
        }
        lines = [f"seed {self.seed}; killed, and how often:"]
        lines += [f"{count:6}  {name}" for name, count in sorted(self.kills.items())]
        lines += [f"{count:6}  {name} (fault)" for name, count in sorted(self.faults.items())]
        lines += [f"embedded {payments.paid} texts, {payments.in_flight_again} of them again after a kill in flight"]
        lines += [", ".join(f"{name} {count}" for name, count in counts.items())]
        return "\n".join(lines)

    def status(self) -> dict[str, Any]:
        """Return the query service's status of the agent; nothing while the service is away."""
        client = Client.at_home(self.home)
        if client is None:
            return {}
        with client:
            try:
                return dict(client.status(agent="main")["agents"][0])
            except ClientError as error:
                return {"error": str(error)}

    def _settled(self) -> bool:
        state = self.status()
        if "disk" not in state:
            return False
        if {letter["errorClass"] for letter in state["deadLetters"]} == {"WorkerDied"}:
            # By chance this siege killed the worker of one document as often as a document would that kills workers.
            self.faults["a document is taken for what kills workers, and retried"] += 1
            recalld("--config", str(self.daemon.config), "dead", "retry", "--all", home=self.home)
            return False
        differing = sum(state["disk"][name] for name in ("missing", "stale", "vanished", "growing", "settling"))
        lacking = state["index"]["vectorsPending"] + state["queue"].get("pending", 1)
        return not differing and not lacking and not state["deadLetters"] and not self._building()

    def _at_rest(self) -> bool:
        """Return True if no document waits to be indexed."""
        try:
            return self.marks.pending("main").documents == 0
        except (redis.RedisError, BrokerUnavailable):
            return False

    def _building(self) -> bool:
        return FileGenerations(self.home / "indexes" / "main", StoreOptions()).next() is not None

    def _stranded(self) -> dict[str, int]:
        """Return the entries left in the broker, by the name of their kind."""
        try:
            left = {f"messages of {queue}": self.client.hlen(self.keys.messages(queue)) for queue in QUEUES}
            left |= {f"delayed of {queue}": self.client.hlen(self.keys.delayed_messages(queue)) for queue in QUEUES}
            pending = self.marks.pending("main")
            left |= {"marks": pending.documents, "documents in jobs": pending.running}
        except (redis.RedisError, BrokerUnavailable):
            return {"the broker": 1}
        return {name: count for name, count in left.items() if count}


def _pause(seconds: float) -> None:
    moment = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > moment)
