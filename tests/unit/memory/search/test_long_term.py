"""Long-term memory and those who may listen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.search.manager import SearchManager
from memory.store.dead_letters import FORGOTTEN
from schemas.documents import DocumentKey
from schemas.errors import Transient
from schemas.search import GetAnswer, GetRequest, SearchRequest
from schemas.settings import Settings
from tests.written_index import searching, with_agent, write_index

GROUP = "agent:main:telegram:group:42"
CHANNEL = "agent:main:slack:channel:general"
SUBAGENT = "agent:main:subagent:3f1c"
SECRET = "Basalt"


@pytest.fixture
def notes(workspace: Path) -> Path:
    (workspace / "MEMORY.md").write_text(
        "\n\n".join(f"# Part {part}\n" + f"The vault is called {SECRET}. " * 60 for part in range(40)), "utf-8"
    )
    (workspace / "memory" / "MEMORY.md").write_text(f"Nested: {SECRET}.\n", "utf-8")
    for number in range(5):
        (workspace / "memory" / f"vault-{number}.md").write_text(f"Note {number}: who has a vault?\n", "utf-8")
    return workspace


@pytest.fixture
def manager(settings: Settings, notes: Path) -> Iterator[SearchManager]:
    settings = with_agent(settings, extra_paths=["."])
    write_index(settings)
    with searching(settings) as made:
        yield made


def get(manager: SearchManager, path: str, session_key: str | None) -> GetAnswer:
    return manager.read_file(GetRequest(path=path, session_key=session_key))


@pytest.mark.parametrize("session_key", [GROUP, CHANNEL, SUBAGENT, GROUP.upper()])
def test_a_shared_session_finds_other_notes_in_place_of_long_term_memory(manager: SearchManager, session_key: str):
    query = f"vault called {SECRET}"
    private = manager.search(SearchRequest(query=query, max_results=5))
    assert [hit.path for hit in private.results] == ["MEMORY.md"] * 5

    shared = manager.search(SearchRequest(query=query, max_results=5, min_score=0, session_key=session_key))
    assert {hit.path for hit in shared.results} == {f"memory/vault-{number}.md" for number in range(5)}
    assert SECRET not in shared.model_dump_json()


def spellings(workspace: Path) -> list[str]:
    names = ["MEMORY.md", "memory.md", "Memory.MD", "mEmOrY.mD"]
    places = ["", "./", ".//", "memory/../", "memory/./../", "memory/", "memory//", str(workspace) + "/"]
    places += [f"{workspace}/./", f"{workspace}/memory/../", f"//{workspace}/", f"../{workspace.name}/", "sessions/../"]
    whole = [place + name for place in places for name in names]
    return [
        *whole,
        "MEMORY.md/",
        "MEMORY.md/.",
        "MEMORY.md ",
        "MEMORY.md\0",
        "MEMORY%2Emd",
        "file:MEMORY.md",
        "~/MEMORY.md",
    ]


@pytest.mark.parametrize("session_key", [GROUP, CHANNEL, SUBAGENT])
def test_no_spelling_of_its_path_reads_long_term_memory_in_a_shared_session(
    manager: SearchManager, notes: Path, session_key: str
):
    os.link(notes / "MEMORY.md", notes / "memory" / "another-name.md")
    paths = [*spellings(notes), "memory/another-name.md"]
    assert sum(SECRET in get(manager, path, None).text for path in paths) >= 8  # spellings that do name it
    for path in paths:
        answer = get(manager, path, session_key)
        assert answer.text == "", path
        assert SECRET not in answer.model_dump_json()
    assert get(manager, "memory/vault-1.md", session_key).text


#: Ways in which another name comes to stand for the very file, before and after it was indexed.
LINKS = ["memory/another-name.md", "memory/deep/er/note.md", "../extra/diary.md"]


@pytest.fixture
def linked(settings: Settings, notes: Path, tmp_path: Path) -> Settings:
    """A memory with an extra path, and hard links to MEMORY.md all over."""
    (tmp_path / "extra").mkdir()
    (notes / "memory" / "deep" / "er").mkdir(parents=True)
    for name in LINKS:
        os.link(notes / "MEMORY.md", notes / name)
    return with_agent(settings, extra_paths=[str(tmp_path / "extra"), "../extra"])


def found(settings: Settings, session_key: str | None, *, provider: str = "stub") -> dict[str, str]:
    """Path -> snippet of all that a session finds, or is told of, for what only long-term memory says and others do."""
    shown = {}
    with searching(with_agent(settings, provider=provider)) as manager:
        for query in (f"vault called {SECRET}", "who has a vault"):
            answer = manager.search(SearchRequest(query=query, max_results=100, min_score=0, session_key=session_key))
            assert answer.error is None
            for hit in answer.results:
                shown |= dict.fromkeys((hit.path, *(hit.also_in.paths if hit.also_in else ())), hit.snippet)
    return shown


@pytest.mark.parametrize("provider", ["stub", "none"])
@pytest.mark.parametrize("session_key", [GROUP, CHANNEL, SUBAGENT])
def test_a_hard_link_brings_long_term_memory_to_no_shared_session(linked: Settings, session_key: str, provider: str):
    write_index(linked).close()
    extra = str(linked.agents[0].workspace.parent / "extra" / "diary.md")

    assert len(found(linked, None, provider=provider).keys() & {*LINKS[:2], extra}) >= 2
    shared = found(linked, session_key, provider=provider)
    assert {f"memory/vault-{number}.md" for number in range(5)} <= shared.keys()
    assert SECRET not in str(shared)


@pytest.mark.parametrize("removed", ["MEMORY.md", LINKS[0]])
def test_a_link_is_known_by_the_index_when_a_name_is_gone(linked: Settings, removed: str):
    write_index(linked).close()
    (linked.agents[0].workspace / removed).unlink()

    assert SECRET not in str(found(linked, GROUP))


@pytest.mark.parametrize("session_key", [None, GROUP])
def test_what_long_term_memory_says_too_does_not_tell_a_shared_session_of_it(
    settings: Settings, workspace: Path, session_key: str | None
):
    for name in ("MEMORY.md", "memory/copy.md"):
        (workspace / name).write_text(f"There is a vault called {SECRET}.\n", "utf-8")
    write_index(settings).close()

    expected = {"memory/copy.md"} if session_key else {"memory/copy.md", "MEMORY.md"}
    assert found(settings, session_key).keys() == expected


def test_a_document_that_is_to_be_read_anew_may_have_been_a_link(linked: Settings):
    store = write_index(linked)
    for path in ("MEMORY.md", LINKS[0]):
        key = DocumentKey("memory", path)
        store.add_dead_letter(key, reason="no permission", error_class="DocumentUnreadable")
        store.retry_dead_letter(key)
        known = store.file(key)
        assert known is not None
        assert known.stat == FORGOTTEN
    store.close()

    (linked.agents[0].workspace / LINKS[0]).unlink()
    (linked.agents[0].workspace / LINKS[0]).write_text("no link any more", "utf-8")
    shared = found(linked, GROUP)
    assert "memory/vault-0.md" in shared
    assert SECRET not in str(shared)


def test_a_disk_that_does_not_answer_refuses_rather_than_shows(manager: SearchManager, monkeypatch):
    def busy(self, key):
        raise Transient("no descriptors left")

    monkeypatch.setattr("memory.documents.agent_files.AgentFiles.stat", busy)
    assert get(manager, "memory/vault-1.md", GROUP).text == ""
    assert get(manager, "memory/vault-1.md", None).text


def test_an_answer_that_was_kept_is_not_given_where_a_note_became_long_term_memory(linked: Settings):
    workspace = linked.agents[0].workspace
    for name in ("MEMORY.md", *LINKS):
        (workspace / name).unlink()
    (workspace / "memory" / "diary.md").write_text(f"The vault is called {SECRET}.\n", "utf-8")
    write_index(linked).close()
    asked = SearchRequest(query="vault called", session_key=GROUP)
    with searching(linked) as manager:
        assert SECRET in manager.search(asked).model_dump_json()
        assert SECRET in manager.search(asked).model_dump_json()
        assert manager.resources.answers.hits == 1, "groups' answers are kept, too"
        os.link(workspace / "memory" / "diary.md", workspace / "MEMORY.md")
        assert SECRET not in manager.search(asked).model_dump_json()
