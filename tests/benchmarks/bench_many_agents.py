"""Many agents on one machine: first indexing, one agent's storm, changed settings, and a service for thousands of them.

    python -m tests.benchmarks.bench_many_agents indexing [--agents 10 100 300 1000] [--notes 20]
    python -m tests.benchmarks.bench_many_agents storm [--files 1000] [--rounds 5]
    python -m tests.benchmarks.bench_many_agents settings [--agents 300] [--notes 30] [--edits 40]
    python -m tests.benchmarks.bench_many_agents service [--agents 3000] [--notes 20] [--open-files 1024]

`indexing`: `recalld up` indexes a workspace an agent for the first time (stub provider). Prints the CPU time of `up`
and of its processes, when the first line of progress came, the last line, how long SIGTERM takes while it starts and at
the end, and the CPU time that one status and one `/readyz` cost the service.
`storm`: one agent's note is written and asked for until it is found: alone, and while so many files are written
into another agent's workspace. The time contains the debounce of 1.5 s.
`settings`: `recalld up` begins again with another chunk size. From its first answer on, a note is written every second,
of one agent after the other from both ends of the list, and asked for until it is found.
`service`: every agent gets a copy of one small index. `recalld serve` runs under a limit of open files, is asked
everything that looks at all agents, and searches each of them; descriptors are counted after every search.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemas.settings import Settings
from tests.benchmarks.bench_freshness import cpu_seconds, family, name
from tests.benchmarks.bench_search import REPOSITORY, WORDS, listening, percentile
from tests.waiting import wait_until
from tests.written_index import write_index

NOTE = "# Note {number}\n\nThe gateway of cluster {number} listens on port {port} and is called Basalt.\n"

#: Words of each note of a storm: about 7 KB, four chunks.
STORM_WORDS = 1_200

#: Seconds that the first indexing of all agents may take.
INDEXING_SECONDS = 1_800.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["indexing", "storm", "settings", "service"])
    parser.add_argument("--agents", type=int, nargs="+", default=None)
    parser.add_argument("--notes", type=int, default=20)
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--edits", type=int, default=40)
    parser.add_argument("--open-files", type=int, default=1_024)
    arguments = parser.parse_args()
    sizes = {"indexing": [10, 100, 300, 1_000], "storm": [10], "settings": [300], "service": [3_000]}[arguments.what]
    for agents in arguments.agents or sizes:
        with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
            if arguments.what == "indexing":
                measure_indexing(Path(folder), agents=agents, notes=arguments.notes)
            elif arguments.what == "storm":
                measure_storm(Path(folder), agents=agents, files=arguments.files, rounds=arguments.rounds)
            elif arguments.what == "settings":
                measure_settings(Path(folder), agents=agents, notes=arguments.notes, edits=arguments.edits)
            else:
                measure(Path(folder), agents=agents, notes=arguments.notes, open_files=arguments.open_files)


def measure_indexing(folder: Path, *, agents: int, notes: int) -> None:
    config = configure(folder, agents=agents, notes=notes)
    with running_up(folder, config) as up:
        # The broker is there, and the other processes are starting.
        wait_until(lambda: len(family(up.pid)) > 3, timeout=120)
        stopped = stop(up)
    shutil.rmtree(folder / "home")
    print(f"{agents:,} agents with {notes} notes each: SIGTERM while it starts: {stopped:.1f} s")
    begun = time.monotonic()
    with running_up(folder, config) as up:
        first = wait_until(lambda: seen(progress(folder)), timeout=INDEXING_SECONDS)
        print(f"  first line of progress after {time.monotonic() - begun:.1f} s: {first[0]}")
        done = f"up to date: {agents * notes:,} documents"
        # A line of before all was there is not the end of it.
        wait_until(lambda: any("up to date" in line for line in progress(folder)), timeout=INDEXING_SECONDS)
        port = wait_until(lambda: listening(folder / "home"), timeout=60)
        print(f"  all there after {time.monotonic() - begun:.1f} s: {progress(folder)[-1]}")
        if done not in progress(folder)[-1]:
            print(f"  NOT the truth, which is {done}")
        print("  CPU: " + ", ".join(f"{role} {seconds:.1f} s" for role, seconds in consumption(up.pid)))
        serve = next(pid for pid in family(up.pid) if name(pid) == "serve")
        threading.Event().wait(5.0)
        ids = agent_ids(agents)
        statuses = [f"/v1/status?agent={ids[place % agents]}" for place in range(100)]
        print(f"  one status of one agent: {cost_ms(serve, port, statuses):.1f} ms of CPU")
        print(f"  one /readyz: {cost_ms(serve, port, ['/readyz'] * 100):.1f} ms of CPU")
        print(f"  SIGTERM at the end: {stop(up):.1f} s")


def measure_storm(folder: Path, *, agents: int, files: int, rounds: int) -> None:
    config = configure(folder, agents=agents, notes=20)
    ids = agent_ids(agents)
    with running_up(folder, config) as up:
        wait_until(lambda: any("up to date" in line for line in progress(folder)), timeout=INDEXING_SECONDS)
        port = wait_until(lambda: listening(folder / "home"), timeout=60)
        times: dict[str, list[float]] = {"alone": [], "in a storm": []}
        for turn in range(rounds):
            times["alone"].append(written_and_found(folder, port, ids[0], f"quietword{turn}x"))
            with storm(folder / ids[1] / "memory", files=files, turn=turn):
                times["in a storm"].append(written_and_found(folder, port, ids[0], f"stormword{turn}x"))
            wait_until(lambda: pending(port, ids[1]) == 0, timeout=300)
        for what, seconds in times.items():
            print(
                f"{what}: median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s "
                f"({', '.join(f'{one:.2f}' for one in seconds)})"
            )
        stop(up)


def measure_settings(folder: Path, *, agents: int, notes: int, edits: int) -> None:
    config, ids = configure(folder, agents=agents, notes=notes), agent_ids(agents)
    with running_up(folder, config) as up:
        wait_until(lambda: any("up to date" in line for line in progress(folder)), timeout=INDEXING_SECONDS)
        stop(up)
    config.write_text(f"chunking.tokens = 300\n{config.read_text('utf-8')}", "utf-8")
    (folder / "home" / "run" / "service.json").unlink(missing_ok=True)
    begun = time.monotonic()
    with running_up(folder, config), ThreadPoolExecutor(edits) as asking:
        port = wait_until(lambda: listening(folder / "home"), timeout=120)
        print(
            f"{agents:,} agents with {notes} notes each, other settings: answers after {time.monotonic() - begun:.1f} s"
        )
        waits = []
        for turn in range(edits):
            # From both ends of the list, which is worked through in order.
            id_ = ids[(-1) ** turn * (turn // 2 * 7 + turn % 2) % agents]
            waits.append(asking.submit(written_and_found, folder, port, id_, f"zanzibarium{turn}x"))
            threading.Event().wait(1.0)
        times = sorted(wait.result() for wait in waits)
        print(f"  edit to found: median {statistics.median(times):.2f} s, longest {times[-1]:.2f} s over {edits} edits")
        built = [folder / "home" / "indexes" / id_ / "NEXT" for id_ in ids]
        wait_until(lambda: not any(path.exists() for path in built), timeout=INDEXING_SECONDS)
        print(f"  built anew after {time.monotonic() - begun:.1f} s")


@contextmanager
def storm(target: Path, *, files: int, turn: int) -> Iterator[None]:
    """Files are written into a folder, one every two milliseconds; the block begins when half of them are there."""
    half = threading.Event()

    def write() -> None:
        for number in range(files):
            words = random.Random(number).choices(WORDS, k=STORM_WORDS)
            lines = [" ".join(words[start : start + 15]) for start in range(0, STORM_WORDS, 15)]
            (target / f"{turn}-{number}.md").write_text(f"# Storm {turn}\n\n" + "\n".join(lines), "utf-8")
            if number == files // 2:
                half.set()
            threading.Event().wait(0.002)

    writer = threading.Thread(target=write)
    writer.start()
    half.wait()
    yield
    writer.join()


def agent_ids(agents: int) -> list[str]:
    return [f"agent-{number:04d}" for number in range(agents)]


def configure(folder: Path, *, agents: int, notes: int) -> Path:
    """A workspace of its own for each agent; returns the configuration."""
    lines = ['provider = "stub"', "auth.trust_loopback = true", "service.port = 0"]
    for id_ in agent_ids(agents):
        (folder / id_ / "memory").mkdir(parents=True)
        for number in range(notes):
            text = NOTE.format(number=f"{number} of {id_}", port=7_000 + number)
            (folder / id_ / "memory" / f"{number:03d}.md").write_text(text, encoding="utf-8")
        lines.append(f'[[agents]]\nid = "{id_}"\nworkspace = "{folder / id_}"')
    config = folder / "recalld.toml"
    config.write_text("\n".join(lines), encoding="utf-8")
    return config


@contextmanager
def running_up(folder: Path, config: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "recalld", "--config", str(config), "--home", str(folder / "home"), "up"]
    with (folder / "printed").open("wb") as printed:
        process = subprocess.Popen([*command, "--port", "0"], cwd=REPOSITORY, stdout=printed, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def progress(folder: Path) -> list[str]:
    lines = (folder / "printed").read_text("utf-8").splitlines()
    return [line for line in lines if line.startswith("up to date") or "searchable by keyword" in line]


def seen(lines: list[str]) -> list[str]:
    return lines[:1]


def stop(up: subprocess.Popen[bytes]) -> float:
    begun = time.monotonic()
    up.send_signal(signal.SIGTERM)
    up.wait(timeout=300)
    return time.monotonic() - begun


def consumption(up: int) -> list[tuple[str, float]]:
    """CPU seconds of `up` and of each process that it started."""
    return [(name(pid), cpu_seconds(pid)) for pid in family(up)]


def cost_ms(serve: int, port: int, paths: list[str]) -> float:
    """CPU time of the service for one of these questions, what it does by itself meanwhile taken off.

    A status is kept for a second, so there is a pause after each: one of ten agents is asked for once a second.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def consumed(asked: bool) -> float:
        before = cpu_seconds(serve)
        for path in paths:
            if asked:
                connection.request("GET", path)
                answer = connection.getresponse()
                assert answer.status == 200, answer.read()
                answer.read()
            threading.Event().wait(0.11)
        return cpu_seconds(serve) - before

    return 1000 * (consumed(True) - consumed(False)) / len(paths)


def written_and_found(folder: Path, port: int, agent: str, word: str) -> float:
    """Seconds from writing a note until a search finds it."""
    (folder / agent / "memory" / f"{word}.md").write_text(f"# Note\n\nThe {word} was decided today.\n", "utf-8")
    begun = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def found() -> bool:
        body = json.dumps({"query": word, "agent": agent, "waitMs": 0})
        connection.request("POST", "/v1/search", body, {"Content-Type": "application/json"})
        answer = json.load(connection.getresponse())
        threading.Event().wait(0.04)
        return any(word in result["snippet"] for result in answer["results"])

    wait_until(found, timeout=120, what=word)
    return time.monotonic() - begun


def pending(port: int, agent: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/v1/status?agent={agent}")
    state = json.load(connection.getresponse())["agents"][0]
    threading.Event().wait(0.2)
    return int(state["queue"]["pending"]) + int(state["disk"]["missing"] + state["disk"]["settling"])


def measure(folder: Path, *, agents: int, notes: int, open_files: int) -> None:
    ids = [f"agent-{number:04d}" for number in range(agents)]
    config = fill(folder, ids, notes=notes)
    command = [sys.executable, "-m", "recalld", "--config", str(config), "--home", str(folder / "home"), "serve"]
    service = subprocess.Popen(
        ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *command], cwd=REPOSITORY, stderr=subprocess.DEVNULL
    )
    try:
        begun = time.perf_counter()
        port = wait_until(lambda: listening(folder / "home"), timeout=120)
        print(f"{agents:,} agents: listens after {time.perf_counter() - begun:.1f} s, {state(service.pid)}")
        ask_all(service.pid, port, ids)
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(timeout=60)


def fill(folder: Path, ids: list[str], *, notes: int) -> Path:
    """The index of the first agent, copied for all; returns the configuration."""
    workspace = folder / "workspace"
    (workspace / "memory").mkdir(parents=True)
    for number in range(notes):
        text = NOTE.format(number=number, port=7_000 + number)
        (workspace / "memory" / f"{number:03d}.md").write_text(text, encoding="utf-8")
    agent = {"id": ids[0], "workspace": workspace, "provider": "stub"}
    settings = Settings.model_validate({"home": folder / "home", "agents": [agent]})
    write_index(settings, ids[0]).close()
    for other in ids[1:]:
        shutil.copytree(settings.indexes_path / ids[0], settings.indexes_path / other)
    config = folder / "recalld.toml"
    lines = ['provider = "stub"', "auth.trust_loopback = true", "service.port = 0"]
    lines += [f'[[agents]]\nid = "{id_}"\nworkspace = "{workspace}"' for id_ in ids]
    config.write_text("\n".join(lines), encoding="utf-8")
    return config


def ask_all(pid: int, port: int, ids: list[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def asked(method: str, path: str, body: object = None) -> Any:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return content

    def shown(what: str, call: Callable[[], Any]) -> None:
        begun = time.perf_counter()
        call()
        print(f"  {what}: {(time.perf_counter() - begun) * 1000:,.1f} ms, {state(pid)}")

    for turn in ("first", "second", "tenth"):
        shown(f"/readyz, {turn} time", lambda: asked("GET", "/readyz"))
        shown(f"/metrics, {turn} time", lambda: asked("GET", "/metrics"))
        if turn == "second":
            for _ in range(7):
                asked("GET", "/readyz")
                asked("GET", "/metrics")
    for turn in ("first", "second"):
        times, most = [], 0
        for id_ in ids:
            begun = time.perf_counter()
            body = {"query": f"gateway of cluster 7, {turn} time", "agent": id_, "minScore": 0}
            found = json.loads(asked("POST", "/v1/search", body))
            times.append((time.perf_counter() - begun) * 1000)
            assert found["results"], found
            most = max(most, descriptors(pid))
        print(
            f"  {turn} search of each: p50 {percentile(times, 50):.1f} ms, p99 {percentile(times, 99):.1f} ms, "
            f"longest {max(times):.1f} ms; at most {most} descriptors, {state(pid)}"
        )
    for _ in range(2):
        shown("/v1/status of one", lambda: asked("GET", f"/v1/status?agent={ids[-1]}"))
    shown("/v1/status of all", lambda: asked("GET", "/v1/status"))


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def state(pid: int) -> str:
    """Memory (of the process's own, and of files that it maps) and descriptors."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    sizes = {
        name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines) if "Rss" in name
    }
    own, mapped = sizes["RssAnon"], sizes["RssFile"]
    return f"{own:.0f} MB of its own and {mapped:.0f} MB of mapped files, {descriptors(pid)} descriptors"


if __name__ == "__main__":
    main()
