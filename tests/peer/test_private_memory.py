"""What is known of the user is memory like MEMORY.md, and as private; of one of several people even more so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import forgets
from memory.documents.roots import priority
from memory.search.manager import SearchManager
from memory.search.resources import SearchResources
from schemas.documents import DocumentKey
from schemas.search import GetRequest, SearchRequest
from schemas.settings import Settings
from tests.recording import entered_folders
from tests.written_index import write_index

OWNER = [None, "agent:main:main", "main", "AGENT:MAIN:MAIN"]
PRIVATE_CHATS = ["agent:main:telegram:direct:ada", "agent:main:webchat:dm:bob", "agent:main:cron:nightly"]
SHARED = ["agent:main:telegram:group:7", "agent:main:slack:channel:general", "agent:main:subagent:3f1c"]

USER, ADA, BOB = "USER.md", "users/ada/USER.md", "users/bob/USER.md"
LINK = "memory/linked.md"


@pytest.fixture
def people(workspace: Path) -> Path:
    for path, taste in ((USER, "tea"), (ADA, "cocoa"), (BOB, "mate"), ("memory/open.md", "water")):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(f"The favourite drink is {taste}.\n", "utf-8")
    os.link(workspace / ADA, workspace / LINK)
    for path in (
        "users/README.md",
        "users/USER.md",
        "users/ada/notes.md",
        "users/ada/deep/USER.md",
        "users/.x/USER.md",
    ):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text("The favourite drink is none.\n", "utf-8")
    return workspace


@pytest.fixture
def manager(settings: Settings, people: Path) -> Iterator[SearchManager]:
    write_index(settings).close()
    resources = SearchResources(settings, model_wait_seconds=5)
    made = SearchManager(settings, settings.agents[0], resources=resources)
    yield made
    made.close()
    resources.close()


def found(manager: SearchManager, session_key: str | None) -> set[str]:
    asked = SearchRequest(query="favourite drink", max_results=50, min_score=0, session_key=session_key)
    hits = manager.search(asked).results
    return {path for hit in hits for path in (hit.path, *(hit.also_in.paths if hit.also_in else ()))}


def read(manager: SearchManager, path: str, session_key: str | None) -> str:
    return manager.read_file(GetRequest(path=path, session_key=session_key)).text


def test_what_is_known_of_the_user_and_of_people_is_indexed_and_nothing_else_of_people(
    settings: Settings, people: Path
):
    keys = {key.path for key in AgentFiles(settings.agents[0]).scan().documents}

    assert keys == {USER, ADA, BOB, LINK, "memory/open.md"}


@pytest.mark.parametrize("session_key", OWNER)
def test_the_owner_finds_and_reads_all_of_it(manager: SearchManager, session_key: str | None):
    assert found(manager, session_key) >= {USER, ADA, BOB, "memory/open.md"}
    assert "mate" in read(manager, BOB, session_key)


@pytest.mark.parametrize("session_key", PRIVATE_CHATS)
def test_a_private_chat_does_not_learn_what_is_known_of_a_person(manager: SearchManager, session_key: str):
    assert found(manager, session_key) == {USER, "memory/open.md"}
    assert "tea" in read(manager, USER, session_key)
    for path in (ADA, BOB, LINK, "users/../users/ada/USER.md", "Users/ada/user.md"):
        assert read(manager, path, session_key) == ""


@pytest.mark.parametrize("session_key", SHARED)
def test_a_shared_session_learns_nothing_of_the_user_either(manager: SearchManager, session_key: str):
    assert found(manager, session_key) == {"memory/open.md"}
    for path in (USER, "./USER.md", ADA, BOB, LINK):
        assert read(manager, path, session_key) == ""
    assert read(manager, "memory/open.md", session_key)


def test_people_below_an_extra_path_are_withheld_as_well(settings: Settings, people: Path):
    agent = settings.agents[0].model_copy(update={"extra_paths": (".",)})
    settings = settings.model_copy(update={"agents": (agent,)})
    write_index(settings).close()
    resources = SearchResources(settings, model_wait_seconds=5)
    manager = SearchManager(settings, agent, resources=resources)

    private = found(manager, "agent:main:telegram:direct:ada")

    assert private >= {USER, "users/README.md", "users/ada/notes.md"}
    assert not private & {ADA, BOB, LINK, "users/.x/USER.md"}
    manager.close()
    resources.close()


def test_it_is_indexed_with_long_term_memory_before_every_other_note():
    paths = ["memory/2026-11-21.md", BOB, "memory/a.md", USER, "MEMORY.md"]

    ordered = sorted(paths, key=lambda path: priority(DocumentKey("memory", path), today=date(2026, 11, 21)))

    assert ordered == ["MEMORY.md", USER, BOB, "memory/2026-11-21.md", "memory/a.md"]


def test_a_person_who_is_forgotten_and_one_who_comes_are_noticed(settings: Settings, people: Path):
    files = AgentFiles(settings.agents[0])
    (people / "users" / "eve").mkdir()
    assert people / "users" / "eve" in entered_folders(files)
    assert people / "users" / "ada" / "deep" not in entered_folders(files)
    assert files.key_of(people / "users" / "eve" / "USER.md") == DocumentKey("memory", "users/eve/USER.md")
    assert files.key_of(people / "users" / "ada" / "notes.md") is None
    assert people / "users" in {root.path for root in files.watch_roots() if root.recursive}

    (people / BOB).unlink()
    (people / "users" / "bob").rmdir()

    assert files.stat(DocumentKey("memory", BOB)) is None
    assert forgets(files, DocumentKey("memory", BOB))


def test_a_folder_of_people_that_is_a_link_is_not_followed(settings: Settings, workspace: Path, tmp_path: Path):
    (tmp_path / "elsewhere" / "ada").mkdir(parents=True)
    (tmp_path / "elsewhere" / "ada" / "USER.md").write_text("secret", "utf-8")
    (workspace / "users").symlink_to(tmp_path / "elsewhere")

    scan = AgentFiles(settings.agents[0]).scan()

    assert (scan.documents, len(scan.problems)) == ({}, 1)
