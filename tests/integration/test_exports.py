"""Export of a memory to one file, and its import into another home: the same answers, and nothing paid."""

from __future__ import annotations

import json
import operator
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import compare, forgets
from memory.index.postgres_generations import PostgresGenerations
from memory.store.options import StoreOptions
from memory.store.postgres.administration import Administration
from memory.store.postgres.arrivals import ArrivingDocuments, Extent, Part, running_digest
from memory.store.postgres.connection import Database
from memory.store.postgres.writer import PostgresStore
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.writer import SqliteStore, copy_whole, create_generation
from memory.store.writer import DocumentDelete
from memory.transcripts.lines import packed
from schemas.agents import Scope
from schemas.documents import DocumentKey
from schemas.settings import Settings
from schemas.settings.service import StoreSettings
from tests.chaos.disks import small_disk
from tests.commanding import CommandLine
from tests.postgres_server import Urls
from tests.storing import document, key
from tests.waiting import wait_until

QUESTIONS = ("who feeds the heron", "zebra", "certificate 4711", "badgers and otters", "what did we decide")


class Desk:
    """A home with notes and two sessions, one without its file, and an empty home with the same settings."""

    def __init__(self, commands: CommandLine, workspace: Path, folder: Path) -> None:
        self.commands, self.workspace, self.file, self.other = commands, workspace, folder / "out.sqlite", folder / "b"
        sessions = folder / "sessions"
        sessions.mkdir()
        commands.configure(f'sessions = ["{sessions}"]')
        (workspace / "MEMORY.md").write_text("The heron is fed at noon.\n")
        (workspace / "memory").mkdir(exist_ok=True)
        for number in range(30):
            text = f"# Badgers {number}\n\nThe badger {number} met {number % 7} otters.\n"
            (workspace / "memory" / f"{number}.md").write_text(text)
        for name in ("talk", "gone"):
            self.say(sessions / f"{name}.jsonl", *(f"Zebra {name} {number}: certificate 4711." for number in range(40)))
        commands.say("index")
        (workspace / "memory" / "3.md").write_text("The badger of old met a heron.\n")
        commands.say("index")
        (sessions / "gone.jsonl").unlink()
        commands.say("index")
        commands.say("export", str(self.file))

    @staticmethod
    def say(file: Path, *texts: str) -> None:
        lines: list[dict[str, Any]] = [{"type": "session", "version": 3, "id": file.stem}]
        lines += [{"type": "message", "message": {"role": "user", "content": text}} for text in texts]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def results(self, home: Path | None = None) -> list[Any]:
        where = ["--home", str(home)] if home is not None else []
        asked = ["search", "--min-score", "0", "--max-results", "20"]
        return [self.commands.json(*where, *asked, question)["results"] for question in QUESTIONS]

    def imported(self, *options: str) -> tuple[int, str, str]:
        return self.commands.run("--home", str(self.other), "import", *options, str(self.file))

    def refused(self) -> str:
        """Return the sentence with which the import is refused; it has made no index."""
        code, out, err = self.imported()
        assert (code, out) == (1, "")
        assert not list(self.other.rglob("*.sqlite"))
        [line] = err.splitlines()
        return line


@pytest.fixture
def desk(commands: CommandLine, workspace: Path, tmp_path: Path) -> Desk:
    return Desk(commands, workspace, tmp_path)


def test_an_imported_memory_answers_the_same_and_pays_nothing(desk: Desk) -> None:
    assert desk.file.stat().st_mode & 0o777 == 0o600
    expected, paid = desk.results(), desk.commands.server.requests
    code, out, err = desk.imported()
    assert (code, out, err) == (0, "imported 33 documents into agent main\n", "")
    report = desk.commands.json("--home", str(desk.other), "index")["agents"][0]
    assert (report["files"], desk.commands.server.requests) == (33, paid)
    assert desk.results(desk.other) == expected
    assert "sessions/gone.jsonl" in {result["path"] for result in expected[1]}
    assert "Zebra gone 7" in desk.commands.say("--home", str(desk.other), "get", "sessions/gone.jsonl")
    assert desk.imported()[1] == "imported 0 documents into agent main\n"
    assert [path.name for path in desk.file.parent.glob("*out.sqlite*")] == ["out.sqlite"]


def test_notes_that_are_not_here_are_left_out_until_they_are(desk: Desk) -> None:
    note = desk.workspace / "memory" / "7.md"
    text = note.read_text()
    note.unlink()
    code, out, err = desk.imported()
    assert (code, out) == (0, "imported 32 documents into agent main\n")
    assert "left out 1 document whose files are not here, such as memory/7.md" in err
    note.write_text(text)
    paid = desk.commands.server.requests
    assert desk.imported()[1] == "imported 1 document into agent main\n"
    note.unlink()
    desk.other = desk.other.with_name("c")
    desk.imported()
    note.write_text(text)
    desk.commands.say("--home", str(desk.other), "index")
    assert desk.commands.server.requests == paid, "its vectors are in the cache"


def test_a_memory_moves_to_a_fleet_and_back_and_pays_nothing(desk: Desk, fleet_urls: Urls) -> None:
    expected = desk.results()
    asked = desk.commands.server.requests
    desk.commands.set("RECALLD_STORE__URL", fleet_urls.writer)
    desk.commands.set("RECALLD_MODEL", "another")
    assert 'agent main has model = "another"' in desk.refused()
    desk.commands.set("RECALLD_MODEL", "")
    assert desk.imported() == (0, "imported 33 documents into agent main\n", "")
    desk.commands.say("--home", str(desk.other), "index")
    assert desk.commands.server.requests == asked
    assert_equal(desk.results(desk.other), expected)
    assert "Zebra gone 7" in desk.commands.say("--home", str(desk.other), "get", "sessions/gone.jsonl")

    desk.commands.set("RECALLD_STORE__URL", fleet_urls.reader)
    desk.file.unlink()
    desk.commands.say("--home", str(desk.other), "export", str(desk.file))
    assert (desk.file.stat().st_mode & 0o777, list(desk.file.parent.glob(".recalld*"))) == (0o600, [])
    code, _, err = desk.commands.run("export", str(desk.file.parent / "nowhere" / "out.sqlite"))
    assert (code, "cannot be written (No such file or directory)" in err) == (1, True)
    code, _, err = desk.commands.run("backup", str(desk.file.parent / "copy"))
    assert (code, "pg_dump" in err, "pg_restore" in err) == (1, True, True)

    desk.commands.set("RECALLD_STORE__URL", "")
    desk.other, asked = desk.other.with_name("c"), desk.commands.server.requests
    assert desk.imported()[1] == "imported 33 documents into agent main\n"
    desk.commands.say("--home", str(desk.other), "index")
    assert desk.commands.server.requests == asked
    assert_equal(desk.results(desk.other), expected)


def assert_equal(results: list[Any], expected: list[Any]) -> None:
    """Check that answers have the same passages in the same order, with the same scores."""
    for passages, others in zip(results, expected, strict=True):
        assert [(each["path"], each["startLine"]) for each in passages] == [
            (each["path"], each["startLine"]) for each in others
        ]
        for score in ("score", "vectorScore", "textScore"):
            scores = [each.get(score) for each in others]
            assert [each.get(score) for each in passages] == pytest.approx(scores, abs=1e-5)


def test_an_imported_conversation_stays_until_its_machine_removes_it(
    desk: Desk, fleet_urls: Urls, settings: Settings
) -> None:
    database, anna = Database(fleet_urls.writer), Scope("acme", "anna")
    fleet = Administration(database, actor="root")
    fleet.add_tenant("acme")
    fleet.add_agent("acme", "anna")
    arriving = ArrivingDocuments(database, anna)
    content = (desk.workspace / "MEMORY.md").read_bytes()
    note = Part(Extent(), len(content), running_digest("", content), packed(content), len(content), is_last=True)
    arriving.add("laptop", key("MEMORY.md"), note)
    desk.commands.set("RECALLD_STORE__URL", fleet_urls.writer)
    code, out, err = desk.imported("--agent", "acme/anna")
    assert (code, out) == (0, "imported 3 documents into agent acme/anna\n")
    assert "left out 30 documents whose files are not here, such as memory/0.md; machines have to send notes" in err

    files = AgentFiles(settings.agents[0], arrived=arriving)
    reader = PostgresGenerations(StoreSettings(url=fleet_urls.reader), anna.agent_id).open_reader()
    assert reader is not None
    talk, gone = (DocumentKey("sessions", f"sessions/{name}.jsonl") for name in ("talk", "gone"))
    assert compare(files, reader).gone == []
    with reader.snapshot() as before:
        indexed = before.file(talk)
        arriving.remove("laptop", [talk, key("MEMORY.md")])
        assert compare(files, reader).gone == [key("MEMORY.md"), talk]
        assert forgets(files, talk, reader)
        assert not forgets(files, gone, reader)
        store = PostgresStore(database, anna, reader.name)
        store.write([DocumentDelete(talk, reader.revision(talk))])
        assert (store.file(talk), before.file(talk)) == (None, indexed)
        assert indexed is not None

    desk.commands.set("RECALLD_STORE__URL", fleet_urls.reader)
    desk.commands.say("export", "--force", "--agent", "acme/anna", str(desk.file))
    with closing(SqliteReader(desk.file, StoreOptions())) as exported:
        assert (exported.check(), {file.key for file in exported.files()}) == ([], {key("MEMORY.md"), gone})
    for name, words in (("acme/bob", "no agent 'acme/bob'"), ("a b/c", "no agent 'a b/c'")):
        code, _, err = desk.commands.run("export", "--force", "--agent", name, str(desk.file))
        assert (code, words in err, "--agent TENANT/AGENT" in err) == (2, True, True)
    database.close()


def test_an_export_is_one_moment_while_a_writer_commits(tmp_path: Path) -> None:
    create_generation(tmp_path / "g.sqlite", StoreOptions(), fingerprint="f", description="")
    both, commits, stop = [key("a.md"), key("b.md")], [0], threading.Event()

    def write() -> None:
        with closing(SqliteStore(tmp_path / "g.sqlite", StoreOptions())) as store:
            while not stop.is_set():
                changes = []
                for each in both:
                    change = document(each, f"word{commits[0]}", revision=store.revision(each))
                    changes.append(replace(change, removed=tuple(chunk.id for chunk in store.chunks_of(each))))
                store.write(changes)
                commits[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(20):
            wait_until(partial(operator.gt, commits, commits.copy()))
            file = tmp_path / f"{number}.export"
            copy_whole(tmp_path / "g.sqlite", file, is_alone=True)
            with closing(SqliteReader(file, StoreOptions())) as reader:
                assert reader.check() == []
                [first, second] = reader.chunk_rows([reader.chunks_of(each)[0].id for each in both]).values()
                assert first.text == second.text
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ('model = "another"', 'was made with model = "text-embedding-3-small", and agent main has model = "another"'),
        ("chunking.tokens = 300", "was made with chunking.tokens = 400, and agent main has chunking.tokens = 300"),
        ('redaction.patterns = ["x1y2"]', 'was made with redaction.patterns = ""'),
        ('provider = "none"', 'and agent main has provider = "none"'),
    ],
)
def test_a_memory_of_another_identity_is_refused_with_both(desk: Desk, setting: str, sentence: str) -> None:
    desk.commands.configure(setting)
    assert sentence in desk.refused()


def test_a_damaged_or_foreign_file_is_refused(desk: Desk) -> None:
    whole = desk.file.read_bytes()
    middle = len(whole) // 2
    overwritten = whole[:middle] + bytes(20_000) + whole[middle + 20_000 :]
    for damaged in (whole[:middle], overwritten, b"no database at all" * 100, b""):
        desk.file.write_bytes(damaged)
        assert "is damaged, or is no export of recalld" in desk.refused()
    desk.file.unlink()
    with closing(apsw.Connection(str(desk.file))) as connection:
        connection.execute("CREATE TABLE chunks (id)")
    assert "is damaged, or is no export of recalld" in desk.refused()


def test_a_newer_format_is_refused_and_an_older_one_is_read_without_a_change(desk: Desk) -> None:
    expected, newer = desk.results(), bytearray(desk.file.read_bytes())
    newer[60:64] = (99).to_bytes(4, "big")  # user_version
    whole = desk.file.read_bytes()
    desk.file.write_bytes(newer)
    assert "upgrade recalld" in desk.refused()
    desk.file.write_bytes(whole)
    with closing(apsw.Connection(str(desk.file))) as connection:
        connection.execute("DROP TABLE chunks_said; DROP TABLE sentences; PRAGMA user_version = 4")
    older = desk.file.read_bytes()
    assert desk.imported()[0] == 0
    assert desk.results(desk.other) == expected
    assert desk.file.read_bytes() == older


def test_an_export_replaces_no_file_unasked_and_leaves_none_on_a_full_disk(desk: Desk, tmp_path: Path) -> None:
    before = desk.file.read_bytes()
    code, _, err = desk.commands.run("export", str(desk.file))
    assert (code, "--force" in err, desk.file.read_bytes()) == (2, True, before)
    desk.commands.say("export", "--force", str(desk.file))
    disk = tmp_path / "disk"
    with small_disk(disk, megabytes=1):
        (disk / "ballast").write_bytes(bytes(900_000))
        for command in ("export", "backup"):
            code, _, err = desk.commands.run(command, str(disk / "copy"))
            [line] = err.splitlines()
            assert (code, "cannot be written" in line) == (1, True)
            assert [path.name for path in disk.rglob("*") if path.is_file()] == ["ballast"]
        assert list((disk / "copy").iterdir()) == []
