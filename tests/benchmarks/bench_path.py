"""Length of the way of one event: files and functions of the product that it enters, and commands to the broker.

    python -m tests.benchmarks.bench_path [--list]

Producers, workers, private broker and the ASGI application run in this one process, with the stub provider. Each event
happens several times, warm. A profile hook sees every function of the five packages that is entered until the event is
over; what threads enter by themselves while nothing happens is subtracted. The shortest round counts. The broker's
commands are those of `COMMANDSTATS`, calls inside of Lua scripts included, a round on average, minus those of an idle
time of the same length. `--list` prints files and commands, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import httpx

from memory.service.agents import ServedAgents
from memory.service.app import create_app
from producers.run import run_producers
from recalld.wiring import indexes_of, open_broker
from schemas.settings import Settings
from tests.benchmarks.frame import options
from tests.daemon import REPOSITORY
from tests.transcript_files import message_line, transcript
from tests.waiting import wait_until
from tests.working import Workers
from workers.claims import coordinating
from workers.queue.connection import connect
from workers.queue.private_server import BrokerServer

PACKAGES = tuple(str(REPOSITORY / name) + "/" for name in ("schemas", "memory", "producers", "workers", "recalld"))

#: Seconds in which what runs by itself is seen at least once; commands are counted over as long.
IDLE_SECONDS = 20.0

#: Seconds that what follows an event (acknowledgements, counters) gets, and belongs to it.
SETTLED_SECONDS = 1.0

#: Commands of the measurement, and of connecting for it.
OWN_COMMANDS = {"info", "type", "client|setinfo"}

#: Times that an event happens.
ROUNDS = 10


class Trace:
    """Functions of the product that any thread enters, as (file, name)."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGES):
            code = frame.f_code
            self.functions.add((code.co_filename.removeprefix(f"{REPOSITORY}/"), code.co_qualname))


@dataclass(frozen=True)
class Way:
    """Files, functions and commands of one event."""

    name: str
    functions: frozenset[tuple[str, str]]
    seconds: float
    commands: dict[str, float]


class House:
    """A home whose producers, workers and service run in this process; nothing in the main thread is traced."""

    def __init__(self, folder: Path) -> None:
        self.workspace, self.sessions = folder / "workspace", folder / "sessions"
        (self.workspace / "memory").mkdir(parents=True)
        self.sessions.mkdir()
        for number in range(2):
            self.note(number, "heron")
        agent = {"id": "main", "workspace": self.workspace, "sessions": [str(self.sessions)], "provider": "stub"}
        sync = {"watch_debounce_ms": 100, "sessions": {"quiet_seconds": 0.2}}
        self.settings = Settings.model_validate({"home": folder / "home", "agents": [agent], "sync": sync})
        self.trace = Trace()
        self.number = 10

    def note(self, number: int, word: str) -> None:
        (self.workspace / "memory" / f"{number}.md").write_text(f"# Note {number}\n\nThe {word} was at the pond.\n")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Producers and workers, until the block ends."""
        stop, ready = threading.Event(), threading.Event()
        broker = open_broker(self.settings)
        producers = threading.Thread(
            target=run_producers,
            args=(self.settings, broker.queue, broker.inbox, broker.health, stop, indexes_of(self.settings)),
            kwargs={"on_ready": ready.set},
        )
        with Workers(self.settings) as self.workers:
            producers.start()
            try:
                assert ready.wait(60)
                yield
            finally:
                stop.set()
                producers.join()
                broker.client.close()

    # Measuring

    def commands(self) -> Counter[str]:
        """Commands that the broker carried out so far, without those of the measurement."""
        with connect(self.settings) as client:
            stats = client.info("commandstats")
        counts = {name.removeprefix("cmdstat_"): int(values["calls"]) for name, values in stats.items()}
        return Counter({name: count for name, count in counts.items() if name not in OWN_COMMANDS})

    def over(self) -> bool:
        """Return True if no mark is pending, asked with a command of the measurement's own."""
        return bool(self.workers.client.type(self.workers.keys.since("main")) == b"none")

    def idle(self) -> Way:
        return self._measured("idle", lambda: time.sleep(IDLE_SECONDS), rounds=1)

    def way(self, name: str, event: Callable[[], None]) -> Way:
        """Return the way of an event, after a first one that is not counted."""
        event()
        return self._measured(name, event, rounds=ROUNDS)

    def _measured(self, name: str, event: Callable[[], None], *, rounds: int) -> Way:
        wait_until(self.over)
        time.sleep(SETTLED_SECONDS)
        before, begun = self.commands(), time.monotonic()
        entered = []
        for _ in range(rounds):
            self.trace.functions = set()
            event()
            time.sleep(SETTLED_SECONDS)
            entered.append(frozenset(self.trace.functions))
        seconds = (time.monotonic() - begun) / rounds
        spent = {command: (count - before[command]) / rounds for command, count in self.commands().items()}
        return Way(name, min(entered, key=len), seconds, spent)

    # Events

    def save_note(self) -> None:
        self.number += 1
        self.note(self.number, f"kingfisher{self.number}x")
        wait_until(lambda: self.workers.finds(f"kingfisher{self.number}x") and self.over())

    def append_line(self) -> None:
        self.number += 1
        with (self.sessions / "talk.jsonl").open("ab") as file:
            file.write(message_line("openclaw", "user", f"The bittern{self.number}x is back."))
        wait_until(lambda: self.workers.finds(f"bittern{self.number}x") and self.over())


def main() -> None:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--list", action="store_true", help="print the files and commands of each way, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
        ways, idle = measure(Path(folder))
    print("| event | files | functions | commands to the broker |")
    print("|---|---|---|---|")
    for way in ways:
        functions, share = way.functions - idle.functions, way.seconds / idle.seconds
        commands = {name: count - idle.commands.get(name, 0) * share for name, count in way.commands.items()}
        files = sorted({file for file, _ in functions})
        print(f"| {way.name} | {len(files)} | {len(functions)} | {sum(commands.values()):.0f} |")
        if arguments.list:
            most = sorted(commands.items(), key=lambda item: -item[1])
            print("\n".join([*files, *(f"{name} {count:.1f}" for name, count in most if count >= 1)]), file=sys.stderr)


def measure(folder: Path) -> tuple[list[Way], Way]:
    """Return the ways of all events, and that of nothing."""
    house = House(folder)
    server = BrokerServer(house.settings)
    server.ensure()
    threading.setprofile(house.trace)
    try:
        (house.sessions / "talk.jsonl").write_bytes(transcript("openclaw", turns=4))
        with house.running(), searching(house) as search:
            ways = [
                house.way("note saved, until its mark is cleared", house.save_note),
                house.way("line appended to a transcript, likewise", house.append_line),
                house.way("search, warm, nothing cached", search),
            ]
            return ways, house.idle()
    finally:
        threading.setprofile(None)
        server.stop()


@contextlib.contextmanager
def searching(house: House) -> Iterator[Callable[[], None]]:
    """Yield a search over the ASGI application, whose event loop has a thread of its own."""
    broker = open_broker(house.settings)
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    clients: list[httpx.AsyncClient] = []

    async def serve() -> None:
        with coordinating(house.settings) as coordination:
            agents = ServedAgents(house.settings, pending=broker.health, inbox=broker.inbox, coordinate=coordination)
            app = create_app(agents)
            transport = httpx.ASGITransport(app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7373") as client,
            ):
                clients.append(client)
                ready.set()
                await stop.wait()

    def search() -> None:
        house.number += 1
        body = {"query": f"who saw the heron number {house.number}"}
        answer = asyncio.run_coroutine_threadsafe(clients[0].post("/v1/search", json=body), loop).result(60)
        assert answer.json()["results"], answer.text

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield search
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
        broker.client.close()


if __name__ == "__main__":
    main()
