"""Sessions of OpenClaw's database on their way into the index, and out of the files that they were before."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memory.documents.comparison import compare
from memory.embedding.providers.stub import StubProvider
from memory.index.indexer import IndexReport
from memory.search.manager import SearchManager
from memory.search.resources import SearchResources
from memory.transcripts.transcript_format import tagged
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, Lane
from schemas.errors import Transient
from schemas.search import GetRequest, SearchRequest
from schemas.settings import Settings
from tests import indexing
from tests.indexing import FAST
from tests.openclaw_database import OpenClawDatabase
from tests.transcript_files import message_line

REPOSITORY = Path(__file__).resolve().parents[4]
KEY = DocumentKey("sessions", "sessions/a.jsonl")
HEADER = b'{"type":"session","version":4,"id":"a","timestamp":"2026-02-03T09:00:00Z"}\n'


class World(indexing.World):
    """One agent of recalld with the folder and the database of an agent of OpenClaw."""

    settings = {"chunking": {"tokens": 64, "overlap": 0}}  # noqa: RUF012 - as in the class above

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sessions.rmdir()
        self.openclaw = folder / "agents" / "main"
        self.sessions = self.openclaw / "sessions"
        self.database = OpenClawDatabase(self.openclaw)
        self.provider = StubProvider(limits=FAST)
        self.main = self.indexer(self.provider)

    def index(self, *keys: DocumentKey) -> IndexReport:
        return self.main.index(keys or (KEY,), lane=Lane.LIVE, on_done=lambda _: None, out_of_time=lambda: False)

    def differing(self) -> tuple[set[DocumentKey], set[DocumentKey]]:
        """Return the documents to index, and those to forget."""
        found = compare(self.main.files, self.main.target())
        return set(found.scan.documents), set(found.gone)

    def catch_up(self) -> None:
        changed, gone = self.differing()
        self.index(*changed, *gone)
        assert self.differing() == (set(), set())

    def texts(self, key: DocumentKey = KEY) -> str:
        store = self.main.target()
        assert store.check() == []
        rows = store.chunk_rows([chunk.id for chunk in store.chunks_of(key)])
        return "\n".join(row.text for row in rows.values())

    def chunks(self, key: DocumentKey = KEY) -> list[int]:
        return [chunk.id for chunk in self.main.target().chunks_of(key)]

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        self.database.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        yield made


def said(*numbers: int) -> list[bytes]:
    """Return a message of some twenty words for each number."""
    words = "quiet harbour crane basalt numbat orange lighthouse ferry manual paint winch rope anchor"
    roles = ("user", "assistant")
    return [message_line("openclaw", roles[number % 2], f"message{number} {words} {number}") for number in numbers]


def test_every_session_is_a_document_under_the_name_of_its_file(world: World) -> None:
    world.database.add("a", [HEADER, *said(1, 2, 3)])
    world.database.add("empty", [])
    assert not world.sessions.exists()
    scan = world.main.files.scan()
    assert list(scan.documents) == [KEY]
    assert scan.problems == ()
    world.catch_up()
    assert [f"message{number}" in world.texts() for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert "credentialword" not in world.texts()


def test_memory_that_a_prompt_was_given_is_not_indexed_as_conversation(world: World) -> None:
    given = tagged("The vault is called Basalt.", kind="memory")
    world.database.add("a", [HEADER, message_line("openclaw", "user", f"{given}\n\nWhich crane is orange?")])
    world.catch_up()
    assert ("crane is orange" in world.texts(), "vault" in world.texts()) == (True, False)


def test_a_session_that_grew_costs_what_was_appended(world: World) -> None:
    world.database.add("a", [HEADER, *said(*range(40))])
    world.catch_up()
    paid, before = world.provider.inputs, world.chunks()
    # If the earlier events were read again, their texts would leave the index.
    world.database.connection.execute("UPDATE transcript_events SET event_json = '{}' WHERE seq < 40")
    world.database.append("a", said(40), first=99)
    world.catch_up()
    assert "message3 " in world.texts()
    assert world.chunks()[: len(before) - 1] == before[:-1]
    assert world.provider.inputs - paid <= 2
    assert "message40" in world.texts()


def test_a_rewritten_session_is_compared_from_its_beginning(world: World) -> None:
    world.database.add("a", [HEADER, *said(*range(20))])
    world.catch_up()
    paid = world.provider.inputs
    world.database.rewrite("a", [HEADER, *said(*range(20))])
    world.catch_up()
    assert world.provider.inputs == paid
    world.database.rewrite("a", [HEADER, *said(*range(5), 77)])
    world.catch_up()
    assert "message77" in world.texts()
    assert "message6" not in world.texts()


def test_compressed_events_are_read_and_a_damaged_one_is_skipped_and_counted(world: World) -> None:
    world.database.add("a", [HEADER, *said(1)])
    world.database.append("a", said(2, 3, 4), zstd=True)
    world.database.connection.execute("UPDATE transcript_events SET event_zstd = x'28b52ffd00' WHERE seq = 3")
    world.database.connection.execute("UPDATE transcript_events SET event_utf8_bytes = 7 WHERE seq = 4")
    world.catch_up()
    assert [f"message{number}" in world.texts() for number in (2, 3, 4)] == [True, False, False]
    file = world.main.target().file(KEY)
    assert file is not None
    [note] = file.notes
    assert note.startswith("2 lines")
    assert note.endswith("(lines 4, 5)")


def test_a_home_that_moves_its_files_into_the_database_pays_nothing_again(world: World) -> None:
    lines = [HEADER, *said(*range(30))]
    world.sessions.mkdir()
    (world.sessions / "a.jsonl").write_bytes(b"".join(lines))
    world.catch_up()
    paid, before = world.provider.inputs, world.chunks()
    world.database.add("a", lines)
    assert list(world.main.files.scan().documents) == [KEY]
    (world.sessions / "a.jsonl").unlink()
    world.catch_up()
    assert (world.provider.inputs, world.chunks()) == (paid, before)
    mark = world.main.target().transcript(KEY)
    assert mark is not None
    assert mark.offset == len(lines)
    world.database.append("a", said(30))
    world.catch_up()
    assert "message30" in world.texts()
    assert world.chunks()[: len(before) - 1] == before[:-1]


@pytest.mark.parametrize("reason", ["reset", "deleted"])
def test_an_archived_session_goes_on_under_the_name_of_its_archive(world: World, reason: str) -> None:
    world.database.add("a", [HEADER, *said(*range(20))])
    world.catch_up()
    paid, before = world.provider.inputs, world.chunks()
    world.database.delete("a", archived_as=reason)
    [archive] = world.main.files.scan().documents
    assert archive.path.startswith(f"sessions/a.jsonl.{reason}.2026-02-04T10-00-00.000Z.")
    world.catch_up()
    assert (world.provider.inputs, world.chunks(archive), world.chunks()) == (paid, before, [])


@pytest.mark.parametrize("embedded", [True, False])
def test_a_session_in_a_cold_archive_is_the_same_document(world: World, embedded: bool) -> None:
    world.database.add("a", [HEADER, *said(*range(20))])
    world.catch_up()
    texts = world.texts()
    world.database.cool("a", embedded=embedded)
    assert world.differing() == (set(), set())
    fresh = world.indexer(name="fresh")
    fresh.index([KEY], lane=Lane.LIVE, on_done=lambda _: None, out_of_time=lambda: False)
    world.main = fresh
    assert world.texts() == texts


def test_a_cold_archive_that_is_missing_is_a_dead_letter(world: World) -> None:
    world.database.add("a", [HEADER, *said(1)])
    world.database.cool("a").unlink()
    world.index()
    [letter] = world.main.target().dead_letters()
    assert "restore it" in letter.reason


def test_a_fork_finds_the_events_of_its_parent_as_well_and_pays_for_its_own(world: World) -> None:
    world.database.add("a", [HEADER, *said(*range(20))])
    world.catch_up()
    paid = world.provider.inputs
    world.database.add("b", [HEADER, *said(*range(20), 50)], key="agent:main:dashboard:fork")
    world.catch_up()
    assert "message50" in world.texts(DocumentKey("sessions", "sessions/b.jsonl"))
    assert world.provider.inputs - paid <= 2


def test_kinds_of_sessions_that_are_not_indexed_are_counted(world: World) -> None:
    keys = ("agent:main:cron:job", "agent:main:cron:job:run:1", "agent:main:hook:1", "agent:main:main:heartbeat")
    for number, key in enumerate(keys):
        world.database.add(f"kind{number}", said(1), key=key)
    world.database.add("a", said(1))
    world.database.add("child", said(1), key="agent:main:subagent:1", spawned_by="agent:main:main")
    world.database.add("childofcron", said(1), key="agent:main:subagent:2", spawned_by="agent:main:cron:job")
    scan = world.main.files.scan()
    assert {key.path for key in scan.documents} == {"sessions/a.jsonl", "sessions/child.jsonl"}
    assert dict(scan.left_out) == {"cron": 3, "hook": 1, "heartbeat": 1}


def test_a_vanished_session_keeps_its_memory_unless_the_settings_forget_it(world: World) -> None:
    world.database.add("a", said(1))
    world.database.add("b", said(2))
    world.catch_up()
    world.database.delete("a")
    assert world.differing() == (set(), set())
    forgetting = world.indexer(sync={"sessions": {"forget_deleted": True}})
    assert compare(forgetting.files, forgetting.target()).gone == [KEY]
    # An absent database tells nothing of its sessions.
    world.database.close()
    world.database.path.rename(world.database.path.with_suffix(".aside"))
    world.sessions.mkdir()
    assert compare(forgetting.files, forgetting.target()).gone == []


def damaged(world: World) -> None:
    world.database.close()
    data = bytearray(world.database.path.read_bytes())
    data[100:4096] = b"\xff" * 3996
    world.database.path.write_bytes(data)


def locked(world: World) -> None:
    world.database.connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    world.database.connection.execute("BEGIN EXCLUSIVE; UPDATE session_windows SET updated_at = updated_at")


def unknown(world: World) -> None:
    world.database.connection.execute("ALTER TABLE session_windows RENAME TO sessions")


def linked(world: World) -> None:
    world.database.close()
    elsewhere = world.database.path.with_name("elsewhere.sqlite")
    world.database.path.rename(elsewhere)
    world.database.path.symlink_to(elsewhere)


@pytest.mark.parametrize("spoil", [damaged, locked, unknown, linked])
def test_a_database_that_cannot_be_read_is_a_condition_and_forgets_nothing(
    world: World, spoil: Callable[[World], None]
) -> None:
    world.database.add("a", [HEADER, *said(1)])
    world.catch_up()
    world.write("memory/note.md", "a note")
    spoil(world)
    forgetting = world.indexer(sync={"sessions": {"forget_deleted": True}})
    found = compare(forgetting.files, forgetting.target())
    assert [problem.code for problem in found.scan.problems] == [ConditionCode.SESSIONS_UNREADABLE]
    assert [key.path for key in found.scan.documents] == ["memory/note.md"]
    assert found.gone == []
    report = world.index(KEY, DocumentKey("memory", "memory/note.md"))
    assert (report.failed, report.deleted) == (0, 0)
    assert "message1" in world.texts()


def test_an_older_layout_without_cold_archives_and_compression_is_read(world: World) -> None:
    world.database.connection.execute(
        "DROP TABLE session_transcript_cold_archives; DROP TABLE session_transcript_archives;"
        "ALTER TABLE transcript_events RENAME TO newer;"
        "CREATE TABLE transcript_events (session_id TEXT, seq INTEGER, event_json TEXT, created_at INTEGER,"
        " PRIMARY KEY (session_id, seq)) STRICT"
    )
    world.database.connection.execute(
        "INSERT INTO session_nodes VALUES ('agent:main:main', 'a', '{}', 1, '', '', '', '')"
    )
    world.database.connection.execute(
        "INSERT INTO session_windows (session_id, session_key, created_at, updated_at)"
        " VALUES ('a', 'agent:main:main', 1, 1)"
    )
    world.database.connection.execute("INSERT INTO transcript_events VALUES ('a', 0, ?, 1)", (said(1)[0].decode(),))
    world.catch_up()
    assert "message1" in world.texts()


#: Views that stand for a table: of credentials, and of what a statement may read.
VIEWS = {
    "transcript_events": "SELECT 'a' AS session_id, 0 AS seq, store_json AS event_json, NULL AS event_zstd,"
    " NULL AS event_utf8_bytes FROM auth_profile_store",
    "session_windows": "SELECT session_id, session_id AS session_key, seq AS updated_at, seq AS transcript_updated_at"
    " FROM transcript_events",
}


@pytest.mark.parametrize("table", VIEWS)
def test_nothing_but_the_tables_of_sessions_is_read_of_the_database(world: World, table: str) -> None:
    world.database.add("a", said(1))
    world.database.connection.execute(
        f"PRAGMA foreign_keys = OFF; ALTER TABLE {table} RENAME TO others; CREATE VIEW {table} AS {VIEWS[table]}"
    )
    problems = world.main.files.scan().problems
    assert [problem.code for problem in problems] == [ConditionCode.SESSIONS_UNREADABLE]


@pytest.mark.parametrize(
    ("events", "together"),
    [
        pytest.param(said(*range(600)), 500, id="some hundreds of events"),
        pytest.param([json.dumps({"type": "custom", "data": "x" * 1_500_000}).encode()] * 6, 3, id="some megabytes"),
    ],
)
def test_a_transaction_reads_a_part_and_the_next_one_notices_a_rewriting(
    world: World, events: list[bytes], together: int
) -> None:
    world.database.add("a", events)
    with world.main.files.opened(KEY) as opened:
        lines = opened.lines()
        assert next(lines).start == 0
        # A reader holds nothing that the program waits for.
        assert world.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall() == [(0, 0, 0)]
        world.database.rewrite("a", events)
        assert [next(lines).start for _ in range(together - 1)] == list(range(1, together))
        with pytest.raises(Transient, match="written anew"):
            next(lines)
        assert opened.changed()
    world.catch_up()


#: Writes an event, waits with the database open for a line, and ends without closing it.
PROGRAM = """
import os, sys
from pathlib import Path
from tests.openclaw_database import OpenClawDatabase
database = OpenClawDatabase(Path(sys.argv[1]), schema="PRAGMA journal_mode")
database.append("a", [sys.argv[2].encode()])
print("written", flush=True)
sys.stdin.readline()
os._exit(0)
"""


def test_reading_leaves_the_files_of_a_program_as_they_are_whether_it_runs(world: World) -> None:
    world.database.add("a", [HEADER, *said(1)])
    world.database.close()

    def files() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in (world.openclaw / "agent").iterdir()}

    command = [sys.executable, "-c", PROGRAM, str(world.openclaw), said(2)[0].decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"written\n"
        before = files()
        world.catch_up()
        assert "message2" in world.texts()
        assert files() == before
        program.communicate(b"\n")
    world.main = world.indexer(name="later")
    world.catch_up()
    assert "message2" in world.texts()
    assert len(before) == 3
    assert files() == before


def test_a_copy_made_during_a_write_shows_what_was_committed_and_stays_as_it_is(world: World, tmp_path: Path) -> None:
    world.database.add("a", [HEADER, *said(1)])
    connection = world.database.connection
    # Pages of a transaction that is not committed are in the log already.
    connection.execute("PRAGMA cache_size = 1; BEGIN")
    world.database.append("a", said(*range(2, 400)))
    copy = tmp_path / "copied" / "agents" / "main"
    shutil.copytree(world.openclaw, copy, ignore=lambda _, names: [name for name in names if name.endswith("-shm")])
    connection.execute("ROLLBACK")
    files = {file: file.read_bytes() for file in (copy / "agent").iterdir()}
    world.main = world.indexer(name="copied", sessions=[str(copy / "sessions")])
    world.catch_up()
    assert ["message1 " in world.texts(), "message2 " in world.texts()] == [True, False]
    assert {file: file.read_bytes() for file in files} == files
    assert len(files) == 2


@pytest.fixture
def memory(world: World) -> Iterator[SearchManager]:
    """The memory with a private session, one of a group and its archive, one in a file, and one of another group."""
    group = "agent:main:telegram:group:-42"
    world.database.add("owner", [HEADER, *said(1, 2)])
    world.database.add("group", [HEADER, *said(3, 4)], key=f"{group}:topic:7")
    world.database.add("before", [HEADER, *said(5)], key=group)
    world.database.delete("before", archived_as="deleted")
    world.database.add("others", said(6), key="agent:main:telegram:group:-99")
    (world.sessions / "file.jsonl").write_bytes(b"".join(said(7)))
    world.catch_up()
    settings = Settings(home=world.folder, agents=(world.main.agent,))
    opened = SearchManager(settings, world.main.agent, resources=SearchResources(settings, model_wait_seconds=5))
    yield opened
    opened.close()
    opened.resources.close()


def test_a_result_cites_the_events_of_its_session_and_is_read_by_that(memory: SearchManager) -> None:
    results = memory.search(SearchRequest(query="message2 basalt", min_score=0, max_results=20)).results
    cited = {result.path: result.citation for result in results}
    assert cited["sessions/owner.jsonl"] == "session:owner#2-3"
    assert cited["sessions/file.jsonl"] == "sessions/file.jsonl#L1"
    [archive] = [citation for path, citation in cited.items() if path.startswith("sessions/before.jsonl.deleted.")]
    assert archive == f"{next(path for path in cited if 'before' in path)}#L2"
    for request in ({"path": "session:owner#2-3"}, {"path": "sessions/owner.jsonl", "from": 2, "lines": 2}):
        answer = memory.read_file(GetRequest.model_validate(request))
        assert (answer.path, answer.from_, answer.lines, answer.total_lines) == ("sessions/owner.jsonl", 2, 2, 3)
        assert [f"message{number}" in answer.text for number in (1, 2, 3)] == [True, True, False]
    assert "message2" in memory.read_file(GetRequest(path="session:owner")).text
    assert memory.read_file(GetRequest(path="session:../main/owner#1")).refused


def test_a_group_finds_the_sessions_of_its_own_place_alone(memory: SearchManager, world: World) -> None:
    request = SearchRequest(query="basalt", min_score=0, max_results=20, session_key="agent:main:telegram:group:-42")
    found = {result.path.partition(".")[0] for result in memory.search(request).results}
    assert found == {"sessions/group", "sessions/before"}
    reading = GetRequest(path="session:owner#1", session_key=request.session_key)
    assert memory.read_file(reading).refused
    # While nothing tells whose sessions they are, a group gets none.
    unknown(world)
    assert memory.search(request).results == ()


def test_the_place_of_a_session_that_two_databases_have_is_unknown(world: World, tmp_path: Path) -> None:
    group = "agent:main:telegram:group:-42"
    other = OpenClawDatabase(tmp_path / "agents" / "other")
    world.database.add("a", said(1), key=group)
    files = world.indexer(sessions=[str(world.sessions), str(other.agent / "sessions")]).files
    assert files.transcripts_at("telegram:group:-42") == {KEY.path}
    other.add("a", said(2), key="agent:other:main")
    assert files.transcripts_at("telegram:group:-42") == set()
    other.close()


def test_a_session_is_read_from_the_index_while_its_database_is_away(memory: SearchManager, world: World) -> None:
    unknown(world)
    answer = memory.read_file(GetRequest(path="session:owner#2-3"))
    assert "message1" in answer.text
    assert answer.warning is not None
