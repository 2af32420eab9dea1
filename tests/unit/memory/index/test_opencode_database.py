"""Sessions of OpenCode's database on their way into the index, and from there into answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memory.documents.comparison import compare
from memory.embedding.providers.stub import StubProvider
from memory.search.manager import SearchManager
from memory.search.resources import SearchResources
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, Lane
from schemas.search import GetRequest, SearchRequest
from schemas.settings import Settings
from tests import indexing
from tests.indexing import FAST
from tests.opencode_database import OpenCodeDatabase

KEY = DocumentKey("sessions", "sessions/ses_a.jsonl")
WORDS = "quiet harbour crane basalt numbat orange lighthouse ferry manual paint winch rope anchor"


class World(indexing.World):
    """One agent of recalld with OpenCode's data folder."""

    settings = {"chunking": {"tokens": 64, "overlap": 0}}  # noqa: RUF012 - as in the class above

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sessions = folder / "opencode"
        self.database = OpenCodeDatabase(self.sessions)
        self.database.add("ses_a")
        self.provider = StubProvider(limits=FAST)
        self.main = self.indexer(self.provider)

    def differing(self) -> set[DocumentKey]:
        comparison = compare(self.main.files, self.main.target())
        return {*comparison.scan.documents, *comparison.gone}

    def catch_up(self) -> None:
        changed = tuple(self.differing())
        self.main.index(changed, lane=Lane.LIVE, on_done=lambda _: None, out_of_time=lambda: False)
        assert self.differing() == set()

    def texts(self, key: DocumentKey = KEY) -> str:
        store = self.main.target()
        assert store.check() == []
        rows = store.chunk_rows([chunk.id for chunk in store.chunks_of(key)])
        return "\n".join(row.text for row in rows.values())

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        self.database.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        yield made


def test_a_session_has_the_words_of_both_speakers_with_their_times(world: World) -> None:
    world.database.add("ses_empty")
    world.database.say("ses_a", "user", "first question", "its second part")
    world.database.say("ses_a", "assistant", "first answer")
    (world.sessions / "snapshot").mkdir()
    (world.sessions / "snapshot" / "x.jsonl").write_text('{"role": "user", "content": "of another program"}\n')
    assert world.differing() == {KEY}
    world.catch_up()
    texts = world.texts()
    assert "02:40] User: first question\nits" in texts
    assert "Assistant: first answer" in texts
    assert "credentialword" not in texts


def test_parts_of_the_program_and_summaries_are_no_words(world: World) -> None:
    message = world.database.say("ses_a", "user", "typed words", summary={"diffs": []})
    for part in (
        {"type": "text", "text": "syntheticword", "synthetic": True},
        {"type": "text", "text": "ignoredword", "ignored": True},
        {"type": "reasoning", "text": "thoughtword"},
        {"type": "tool", "state": {"output": "toolword"}},
        {"type": "text", "text": ["listword"]},
        "no object",
    ):
        world.database.add_part(message, part)
    world.database.connection.execute("INSERT INTO part VALUES ('prt_x', ?, 'ses_a', 1, 1, '{broken')", (message,))
    world.database.say("ses_a", "assistant", "summaryword", summary=True)
    world.database.say("ses_a", "assistant", "last words")
    world.catch_up()
    assert "User: typed words" in world.texts()
    assert "last words" in world.texts()
    unspoken = ("syntheticword", "ignoredword", "thoughtword", "toolword", "listword", "broken", "summaryword")
    assert [word for word in unspoken if word in world.texts()] == []


def test_an_answer_that_grows_is_read_again_until_it_is_completed(world: World) -> None:
    world.database.say("ses_a", "user", "question")
    answer = world.database.say("ses_a", "assistant", is_completed=False)
    world.catch_up()
    world.database.add_part(answer, {"type": "text", "text": "firsthalf"})
    world.catch_up()
    assert "firsthalf" in world.texts()
    world.database.say("ses_a", "user", "queuedword")
    world.catch_up()
    world.database.add_part(answer, {"type": "text", "text": "secondhalf"})
    world.database.complete(answer)
    world.database.say("ses_a", "assistant", "next answer")
    world.catch_up()
    assert [word in world.texts() for word in ("firsthalf", "secondhalf", "queuedword")] == [True] * 3
    assert world.texts().count("firsthalf") == 1


def test_an_answer_that_a_crash_left_open_does_not_stop_the_session(world: World) -> None:
    world.database.say("ses_a", "user", "question")
    world.database.say("ses_a", "assistant", "crashedword", is_completed=False)
    request = world.database.say("ses_a", "user")
    world.catch_up()
    world.database.add_part(request, {"type": "text", "text": "requestword"})
    world.database.say("ses_a", "assistant", "answerword")
    world.catch_up()
    assert [word in world.texts() for word in ("crashedword", "requestword", "answerword")] == [True] * 3


def test_a_session_that_grew_costs_what_was_appended(world: World) -> None:
    for number in range(40):
        world.database.say("ses_a", ("user", "assistant")[number % 2], f"message{number} {WORDS}")
    world.catch_up()
    paid = world.provider.inputs
    # If the earlier messages were read again, their texts would leave the index.
    world.database.connection.execute("UPDATE part SET data = '{}' WHERE data NOT LIKE '%message39 %'")
    world.database.say("ses_a", "user", f"message40 {WORDS}")
    world.catch_up()
    answer = world.database.say("ses_a", "assistant", is_completed=False)
    world.catch_up()
    world.database.add_part(answer, {"type": "text", "text": f"message41 {WORDS}"})
    world.database.complete(answer)
    world.catch_up()
    assert [f"message{number} " in world.texts() for number in (3, 40, 41)] == [True] * 3
    assert world.provider.inputs - paid <= 4


def test_messages_that_were_taken_back_leave_the_index_and_the_others_cost_nothing(world: World) -> None:
    messages = [world.database.say("ses_a", "assistant", f"message{number} {WORDS}") for number in range(600)]
    world.catch_up()
    paid = world.provider.inputs
    world.database.connection.execute("DELETE FROM message WHERE id = ?", (messages[-1],))
    world.database.say("ses_a", "user", f"afresh {WORDS}")
    world.database.say("ses_a", "assistant", f"anew {WORDS}")
    world.catch_up()
    assert [word in world.texts() for word in ("message598 ", "afresh", "anew")] == [True] * 3
    assert "message599 " not in world.texts()
    assert world.provider.inputs - paid <= 4


def test_the_session_of_a_subagent_is_of_that_kind_with_its_speakers(world: World) -> None:
    child = DocumentKey("sessions", "sessions/ses_child.jsonl")
    world.database.say("ses_a", "user", "question")
    world.database.add("ses_child", parent="ses_a")
    world.database.say("ses_child", "user", "find the port")
    world.database.say("ses_child", "assistant", "it is 8443")
    world.catch_up()
    assert "Agent: find" in world.texts(child)
    assert "Subagent: it is 8443" in world.texts(child)
    scan = world.indexer(sync={"sessions": {"kinds": ["chat"]}}).files.scan()
    assert (set(scan.documents), dict(scan.left_out)) == ({KEY}, {"subagent": 1})


def unknown(world: World) -> None:
    world.database.connection.execute("ALTER TABLE message RENAME COLUMN data TO content")


def viewed(world: World) -> None:
    world.database.connection.execute(
        "PRAGMA foreign_keys = OFF; ALTER TABLE session RENAME TO others;"
        "CREATE VIEW session AS SELECT value AS id, NULL AS parent_id FROM credential"
    ).fetchall()


def locked(world: World) -> None:
    world.database.connection.execute("PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE").fetchall()


def damaged(world: World) -> None:
    world.database.close()
    world.database.path.write_bytes(b"no database at all" * 100)


def linked(world: World) -> None:
    world.database.close()
    world.database.path.rename(world.folder / "elsewhere.db")
    world.database.path.symlink_to(world.folder / "elsewhere.db")


@pytest.mark.parametrize("spoil", [unknown, viewed, locked, damaged, linked])
def test_a_database_that_cannot_be_read_is_a_condition_and_forgets_nothing(
    world: World, spoil: Callable[[World], None]
) -> None:
    world.database.say("ses_a", "assistant", "message1")
    world.catch_up()
    spoil(world)
    forgetting = world.indexer(sync={"sessions": {"forget_deleted": True}})
    comparison = compare(forgetting.files, forgetting.target())
    assert [problem.code for problem in comparison.scan.problems] == [ConditionCode.SESSIONS_UNREADABLE]
    assert (dict(comparison.scan.documents), comparison.gone) == ({}, [])


def test_a_vanished_session_keeps_its_memory_unless_the_settings_forget_it(world: World) -> None:
    world.database.say("ses_a", "assistant", "message1")
    world.catch_up()
    forgetting = world.indexer(sync={"sessions": {"forget_deleted": True}})
    world.database.connection.execute("DELETE FROM message")
    assert compare(world.main.files, world.main.target()).gone == []
    assert compare(forgetting.files, forgetting.target()).gone == [KEY]
    world.database.close()
    world.database.path.unlink()
    assert compare(forgetting.files, forgetting.target()).gone == []


def test_a_result_cites_the_messages_of_its_session_and_is_read_by_that(world: World) -> None:
    for number in range(3):
        world.database.say("ses_a", "assistant", f"message{number} {WORDS}")
    world.catch_up()
    settings = Settings(home=world.folder, agents=(world.main.agent,))
    memory = SearchManager(settings, world.main.agent, resources=SearchResources(settings, model_wait_seconds=5))
    results = memory.search(SearchRequest(query="message2 basalt", min_score=0, max_results=20)).results
    assert "session:ses_a#3" in {result.citation for result in results}
    answer = memory.read_file(GetRequest(path="session:ses_a#2-3"))
    assert [f"message{number}" in answer.text for number in range(3)] == [False, True, True]
    for place in ("telegram:group:-42", "ses_a"):
        request = SearchRequest(query="basalt", min_score=0, session_key=f"agent:main:{place}")
        assert memory.search(request).results == ()
    memory.close()
    memory.resources.close()
