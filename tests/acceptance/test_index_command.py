"""`recalld index`: bring the index up to date without a daemon, and leave nothing behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from memory.index.file_generation_writer import FileGenerationWriter
from memory.index.fingerprint import Fingerprint
from memory.status.run_files import note_unfinished, was_unfinished
from memory.store.options import StoreOptions
from tests.daemon import REPOSITORY, Daemon, clean_environment, processes_of, recalld

STUB = {"RECALLD_PROVIDER": "stub"}


def index(home: Path, workspace: Path, *arguments: str) -> dict[str, object]:
    answer = recalld("index", "--workspace", str(workspace), "--json", *arguments, home=home, environment=STUB)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return dict(json.loads(answer.stdout)["agents"][0])


def test_a_home_at_rest_is_brought_up_to_date_without_a_broker(home: Path, workspace: Path) -> None:
    note = workspace / "MEMORY.md"
    note.write_text("The lynx hides.\n")
    report = index(home, workspace)
    assert (report["files"], report["chunks"], report["vectorsReady"], processes_of(home)) == (1, 1, 1, [])
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


def test_sentences_come_with_the_first_index_and_where_they_are_missing(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The lynx hides in the forest beyond the third lake.\n")

    def sentences() -> tuple[int, int]:
        [agent] = json.loads(recalld("status", "--json", home=home, environment=STUB).stdout)["agents"]
        assert agent["ok"]
        return agent["vectors"]["sentencesReady"], agent["vectors"]["sentencesWanted"]

    index(home, workspace)
    assert sentences() == (1, 1)
    [file] = (home / "indexes" / "main").glob("*.sqlite")
    apsw.Connection(str(file)).execute("DELETE FROM sentences")
    assert sentences() == (0, 1)
    index(home, workspace)
    assert sentences() == (1, 1)


def test_an_index_of_an_older_version_gains_users_words_without_a_changed_file(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The lynx hides in the forest beyond the third lake.\n")
    keywords_only = {**STUB, "RECALLD_PROVIDER": "none"}
    command = ("index", "--workspace", str(workspace))
    assert recalld(*command, home=home, environment=keywords_only).returncode == 0
    [file] = (home / "indexes" / "main").glob("*.sqlite")
    connection = apsw.Connection(str(file))
    connection.execute("DROP TABLE chunks_said; DROP TABLE sentences; PRAGMA user_version = 4")
    connection.close()
    assert recalld(*command, home=home, environment=keywords_only).returncode == 0
    connection = apsw.Connection(str(file))
    assert connection.pragma("user_version") > 4
    assert connection.execute("SELECT count(*) FROM meta WHERE name = 'users_words_due'").get == 0
    connection.close()


def test_no_document_at_all_is_never_ok(home: Path, workspace: Path) -> None:
    for code, notes in (("no_documents", 0), ("notes_not_taken", 2)):
        for number in range(notes):
            (workspace / f"other-{number}.md").write_text("The lynx hides.\n")
        indexed = recalld("index", "--workspace", str(workspace), "--json", home=home, environment=STUB)
        assert (indexed.returncode, json.loads(indexed.stdout)["agents"][0]["code"]) == (4, code)
        status = recalld("status", "--json", home=home, environment=STUB)
        [trouble] = json.loads(status.stdout)["agents"][0]["troubles"]
        assert (status.returncode, trouble["code"], trouble["params"]) == (4, code, {"notes": notes})
    every_note = {**STUB, "RECALLD_EXTRA_PATHS": "."}
    assert recalld("index", home=home, environment=every_note).returncode == 0


@pytest.mark.parametrize("command", [["index"], ["up", "--port", "0"]])
def test_an_endpoint_that_cannot_be_reached_is_named_first(home: Path, workspace: Path, command: list[str]) -> None:
    (workspace / "MEMORY.md").write_text("The lynx hides.\n")
    provider = {"PROVIDER": "openai", "REMOTE__BASE_URL": "http://127.0.0.1:1/v1", "REMOTE__API_KEY": "key"}
    environment = clean_environment({f"RECALLD_{name}": value for name, value in provider.items()})
    words = [sys.executable, "-m", "recalld", "--home", str(home), *command, "--workspace", str(workspace)]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(words, cwd=REPOSITORY, env=environment, text=True, **output) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
    assert f"openai at {provider['REMOTE__BASE_URL']} failed" in line
    assert "remote.base_url" in line


def test_after_an_interrupted_run_workers_finish_what_it_left(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The lynx hides.\n")
    index(home, workspace)
    shutil.rmtree(home / "broker")
    note_unfinished(home)
    index(home, workspace)
    assert (home / "broker").is_dir()
    assert not was_unfinished(home)


@pytest.mark.parametrize(
    ("command", "goes_on"), [(["rebuild"], True), pytest.param(["rebuild", "--force"], False, marks=pytest.mark.long)]
)
def test_a_rebuild_goes_on_with_a_build_that_was_interrupted_and_force_begins_anew(
    home: Path, workspace: Path, command: list[str], *, goes_on: bool
) -> None:
    (workspace / "MEMORY.md").write_text("The badger digs.\n")
    index(home, workspace)
    folder = home / "indexes" / "main"
    writer = FileGenerationWriter(folder, StoreOptions())
    reader = writer.open_reader()
    assert reader is not None
    writer.begin(Fingerprint(reader.meta("fingerprint") or "", reader.meta("identity") or ""))
    reader.close()
    interrupted, before = writer.next(), writer.current()
    writer.close()
    rebuilt = recalld(*command, "--workspace", str(workspace), home=home, environment=STUB)
    assert rebuilt.returncode == 0, rebuilt.stderr
    now = (folder / "CURRENT").read_text().strip()
    assert (now == interrupted, now == before, (folder / "NEXT").exists()) == (goes_on, False, False)
    assert recalld("search", "badger", home=home, environment=STUB).returncode == 0


@pytest.mark.long
def test_index_beside_a_daemon_uses_its_workers(home: Path, workspace: Path) -> None:
    with Daemon(home, workspace) as daemon:
        daemon.write("memory/x.md", "The serval waits.\n")
        answer = daemon.run("index", "--json")
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["agents"][0]["files"] == 1
        assert daemon.found("serval", "memory/x.md")


@pytest.mark.parametrize("which", ["memory", "workspace"])
def test_notes_of_a_folder_moved_away_stay_until_a_command_forgets_them(
    home: Path, workspace: Path, which: str
) -> None:
    (workspace / "MEMORY.md").write_text("The lynx hides.\n")
    (workspace / "memory" / "other.md").write_text("The margay climbs.\n")
    index(home, workspace)
    folder = workspace / "memory" if which == "memory" else workspace
    folder.rename(folder.with_name("aside"))
    if which == "memory":
        folder.mkdir()
        assert index(home, workspace)["files"] == 2
    status = recalld("status", "--json", home=home, environment=STUB)
    [agent] = json.loads(status.stdout)["agents"]
    assert (status.returncode, agent["disk"]["vanished"]) == (4, 0)
    [trouble] = [one for one in agent["troubles"] if one["code"] == "folder_emptied"]
    assert (trouble["subject"], trouble["params"]["notes"]) == (str(folder), 1 if which == "memory" else 2)
    assert index(home, workspace, "--forget-missing")["files"] == (1 if which == "memory" else 0)
    status = recalld("status", "--json", home=home, environment=STUB)
    troubles = [one["code"] for one in json.loads(status.stdout)["agents"][0]["troubles"]]
    assert troubles == ([] if which == "memory" else ["folder_missing"])
