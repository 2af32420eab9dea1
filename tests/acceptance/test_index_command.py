"""`recalld index`: bring the index up to date without a daemon, and leave nothing behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memory.index.generation_writer import GenerationWriter
from memory.status.private_broker import note_unfinished, was_unfinished
from memory.store.options import StoreOptions
from schemas.settings import Settings
from tests.daemon import REPOSITORY, Daemon, arguments_of, clean_environment, recalld
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until

STUB = {"RECALLD_PROVIDER": "stub"}


def index(home: Path, workspace: Path, *arguments: str) -> dict[str, object]:
    answer = recalld("index", "--workspace", str(workspace), "--json", *arguments, home=home, environment=STUB)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return dict(json.loads(answer.stdout)["agents"][0])


def test_index_takes_in_everything_and_leaves_no_process(home: Path, workspace: Path) -> None:
    for number in range(30):
        (workspace / "memory" / f"{number}.md").write_text(f"# Note {number}\n\nword{number} is here\n")
    report = index(home, workspace)
    assert (report["files"], report["vectorsPending"]) == (30, 0)
    assert report["vectorsReady"] == report["chunks"] == 30
    left = [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and any(str(home) in word for word in arguments_of(int(entry.name)))
    ]
    assert left == []


def test_a_home_at_rest_is_brought_up_to_date_without_a_broker(home: Path, workspace: Path) -> None:
    note = workspace / "MEMORY.md"
    note.write_text("The lynx hides.\n")
    index(home, workspace)
    shutil.rmtree(home / "broker")
    assert index(home, workspace)["vectorsReady"] == 1
    note.write_text("The ocelot hides.\n")
    (workspace / "memory" / "other.md").write_text("The margay climbs.\n")
    report = index(home, workspace)
    assert (report["files"], report["vectorsReady"], report["vectorsPending"]) == (2, 2, 0)
    assert "MEMORY.md" in recalld("search", "ocelot", home=home, environment=STUB).stdout
    note.unlink()
    assert index(home, workspace)["files"] == 1
    assert not (home / "broker").exists()


def test_after_an_interrupted_run_workers_finish_what_it_left(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The lynx hides.\n")
    index(home, workspace)
    shutil.rmtree(home / "broker")
    note_unfinished(home)
    index(home, workspace)
    assert (home / "broker").is_dir()
    assert not was_unfinished(home)


def test_the_workspace_is_remembered_for_the_next_command(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The aardvark is remembered.\n")
    index(home, workspace)
    again = recalld("index", "--json", home=home, environment=STUB)
    assert json.loads(again.stdout)["agents"][0]["files"] == 1
    found = recalld("search", "aardvark", home=home, environment=STUB)
    assert "MEMORY.md" in found.stdout


def test_what_a_run_cost_is_said_and_nothing_where_nothing_was_paid(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The aardvark is remembered.\n")
    with EmbeddingServer() as server:
        paid = {
            "RECALLD_PROVIDER": "openai",
            "RECALLD_REMOTE__BASE_URL": server.url,
            "RECALLD_REMOTE__API_KEY": "a-key",
        }
        first = recalld("index", "--workspace", str(workspace), home=home, environment=paid)
        assert "spent: openai text-embedding-3-small: 1 request, 7 tokens, less than $0.01" in first.stdout
        again = recalld("index", "--json", home=home, environment=paid)
        assert json.loads(again.stdout)["agents"][0]["spent"] == []


def test_an_edit_touches_only_the_chunks_it_changed(home: Path, workspace: Path) -> None:
    sections = [f"# Section {n}\n\n" + " ".join(f"word{n}x{i}" for i in range(250)) + "\n\n" for n in range(12)]
    note = workspace / "memory" / "long.md"
    note.write_text("".join(sections))
    index(home, workspace)
    before = chunk_ids(home)
    sections[6] = sections[6].replace("word6x100", "edited")
    note.write_text("".join(sections))
    index(home, workspace)
    after = chunk_ids(home)
    assert len(before - after) <= 2
    assert len(after - before) <= 2
    assert len(before & after) >= 10


def test_force_builds_a_new_generation_from_the_cache(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The badger digs.\n")
    index(home, workspace)
    current = (home / "indexes" / "main" / "CURRENT").read_text()
    index(home, workspace, "--force")
    assert (home / "indexes" / "main" / "CURRENT").read_text() != current
    assert not (home / "indexes" / "main" / "NEXT").exists()
    found = recalld("search", "badger", home=home, environment=STUB)
    assert found.returncode == 0


def test_rebuild_goes_on_with_a_build_that_was_interrupted_and_force_begins_anew(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The badger digs.\n")
    index(home, workspace)
    folder = home / "indexes" / "main"
    for force in ((), ("--force",)):
        writer = GenerationWriter(folder, StoreOptions())
        reader = writer.open_reader()
        assert reader is not None
        writer.begin(reader.meta("fingerprint") or "", reader.meta("identity") or "")
        reader.close()
        interrupted = writer.next()
        writer.close()
        rebuilt = recalld("rebuild", "--workspace", str(workspace), *force, home=home, environment=STUB)
        assert rebuilt.returncode == 0, rebuilt.stderr
        assert ((folder / "CURRENT").read_text().strip() == interrupted) == (not force)
        assert not (folder / "NEXT").exists()


def test_other_settings_build_a_new_generation_and_change_over(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("\n".join(f"# Part {n}\n\n" + "filler words here " * 60 for n in range(6)))
    first = index(home, workspace)
    answer = recalld(
        "index",
        "--json",
        home=home,
        environment={**STUB, "RECALLD_CHUNKING__TOKENS": "64", "RECALLD_CHUNKING__OVERLAP": "0"},
    )
    assert answer.returncode == 0, answer.stderr
    second = json.loads(answer.stdout)["agents"][0]
    assert second["chunks"] > first["chunks"]  # type: ignore[operator]


def test_an_unreadable_file_is_a_dead_letter_and_the_rest_is_indexed(home: Path, workspace: Path) -> None:
    (workspace / "memory" / "good.md").write_text("The lemur is fine.\n")
    (workspace / "memory" / "bad.md").symlink_to("/etc/hostname")
    (workspace / "memory" / "odd.md").write_bytes(b"\xff\xfe\x00broken \x00 caf\xe9 the gnu\n")
    report = index(home, workspace)
    assert report["files"] == 2
    status = json.loads(recalld("status", "--json", home=home, environment=STUB).stdout)["agents"][0]
    assert any("odd.md" in note for note in status["notes"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["index", "--workspace", "/nonexistent/place"], "does not exist"),
        (["index"], "--workspace"),
        (["search", "anything"], "--workspace"),
        (["up", "--port", "99999", "--workspace", "."], "port"),
        (["emit", "changed"], "PATH"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_mistake_gets_one_sentence_that_says_what_to_do(home: Path, arguments: list[str], says: str) -> None:
    answer = recalld(*arguments, home=home, environment=STUB)
    assert answer.returncode not in {0, None}
    assert says in answer.stderr
    assert "Traceback" not in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1, answer.stderr


def test_index_beside_a_daemon_uses_its_workers(home: Path, workspace: Path) -> None:
    with Daemon(home, workspace) as daemon:
        daemon.write("memory/x.md", "The serval waits.\n")
        answer = daemon.run("index", "--json")
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["agents"][0]["files"] == 1
        assert daemon.found("serval", "memory/x.md")


@pytest.mark.parametrize(
    "command", ["index", *(pytest.param(name, marks=pytest.mark.long) for name in ("rebuild", "up"))]
)
def test_without_the_actors_nothing_is_indexed(home: Path, workspace: Path, tmp_path: Path, command: str) -> None:
    """There is no way into an index past the queue: with no actor to take the message, every command waits for ever."""
    (workspace / "MEMORY.md").write_text("Nobody will index this.\n")
    (tmp_path / "sitecustomize.py").write_text(
        "import workers.actors\nworkers.actors.declare_actors = lambda broker, runtime: None\n"
    )
    environment = {**STUB, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    port = ["--port", "0"] if command == "up" else []
    process = subprocess.Popen(
        [sys.executable, "-m", "recalld", "--home", str(home), command, "--workspace", str(workspace), *port],
        cwd=REPOSITORY,
        env=clean_environment(environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: pending(home) == 1, what="the note is marked")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=4)
        assert pending(home) == 1
    finally:
        process.terminate()
        process.wait(timeout=60)


def pending(home: Path) -> int:
    """Documents that are marked, 0 while no broker runs."""
    from workers.health.health_store import HealthStore
    from workers.queue.connection import connect, namespace
    from workers.queue.names import Keys

    settings = Settings(home=home)
    with connect(settings) as client:
        found = HealthStore(client, Keys(namespace(settings))).pending("main")
    return found.documents if found is not None else 0


def chunk_ids(home: Path) -> set[tuple[int, str]]:
    import apsw

    (file,) = (home / "indexes" / "main").glob("*.sqlite")
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    rows = set(connection.execute("SELECT id, text_hash FROM chunks"))
    connection.close()
    return rows
