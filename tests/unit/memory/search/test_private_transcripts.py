"""Transcripts, notes made of them, and the sessions that find and read them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from memory.context.agent_context import AgentContext
from memory.context.injection import InjectedSessions
from memory.documents.note_facts import NoteFacts
from memory.embedding.providers.stub import StubProvider
from memory.embedding.vectors import round_rows
from memory.search.manager import SearchManager
from memory.store.writer import Store
from schemas.context import PromptRequest
from schemas.documents import DocumentKey
from schemas.search import GetRequest, SearchAnswer, SearchRequest
from schemas.settings import Settings
from tests.storing import document
from tests.transcript_files import message_line
from tests.written_index import searching, with_agent, write_document, write_index

ARCHIVED = "2026-09-08T10-00-00.000Z"

#: What OpenClaw's store says of a folder of transcripts.
STORED: dict[str, dict[str, Any]] = {
    "agent:main:main": {"sessionId": "owner"},
    "agent:main:telegram:group:-42": {"sessionId": "group", "usageFamilySessionIds": ["earlier", "group"]},
    "agent:main:Telegram:GROUP:-42:topic:7": {"sessionId": "t", "sessionFile": "/x/sessions/topic.jsonl"},
    "agent:main:telegram:group:-99": {"sessionId": "others"},
    "agent:main:telegram:direct:ada": {"sessionId": "ada"},
    "agent:main:telegram:direct:bob": {"sessionId": "bob"},
    "agent:main:subagent:1": {"sessionId": "helper"},
    "agent:main:telegram:supergroup:42": {"sessionId": "super"},
    "agent:main:slack:channel:c": {"sessionId": "moved"},
    "agent:main:slack:direct:eve": {"sessionId": "moved"},
}

TRANSCRIPTS = [
    *(
        f"{name}.jsonl"
        for name in ["owner", "group", "earlier", "topic", "others", "ada", "bob", "helper", "super", "moved", "claude"]
    ),
    *(f"{name}.jsonl.reset.{ARCHIVED}" for name in ("owner", "group", "forgotten")),
]
GROUPS = {"group.jsonl", "earlier.jsonl", "topic.jsonl", f"group.jsonl.reset.{ARCHIVED}"}
GROUP, CHANNEL = "agent:main:telegram:group:-42", "agent:main:slack:channel:c"

#: Session key -> transcripts that it finds.
VISIBLE: dict[str | None, set[str]] = {
    None: {*TRANSCRIPTS},
    "agent:main:main": {*TRANSCRIPTS},
    GROUP: GROUPS,
    GROUP.upper(): GROUPS,
    f"{GROUP}:topic:9": GROUPS,
    f"{GROUP}:thread:9": GROUPS,
    f"{GROUP}:subagent:9": set(),
    "agent:main:telegram:group:-4": set(),
    "agent:main:telegram:group:-99": {"others.jsonl"},
    CHANNEL: set(),
    "agent:main:subagent:1": {"helper.jsonl"},
    "agent:main:subagent:2": set(),
    "agent:main:telegram:supergroup:42": {"super.jsonl"},
    "agent:main:telegram:supergroup:43": set(),
    "agent:main:telegram:direct:ada": {"ada.jsonl"},
    "agent:main:telegram:direct:ada:thread:1": {"ada.jsonl"},
    "agent:main:whatsapp:dm:ada": set(),
    "agent:main:slack:direct:eve": set(),
    "agent:main:cron:nightly": set(),
    "agent:main": set(),
    "agent:main:main-2": set(),
}


def note_of(transcript: str, text: str = "A vault, says a note.") -> str:
    facts = NoteFacts(transcript.partition(".")[0], "openclaw", f"sessions/{transcript}")
    return f"# Session of 2026-09-08 10:00\n\n{facts}\n\n## Last messages\n\n{text} ({transcript})\n"


def note_name(transcript: str) -> str:
    return f"memory/of-{transcript}.md"


def expected(transcripts: set[str]) -> set[str]:
    notes = {note_name(name) for name in transcripts}
    return {f"sessions/{name}" for name in transcripts} | notes | {"memory/vault.md"}


def embed(text: str) -> Any:
    return round_rows(StubProvider().embed_documents([text]).vectors, expected=1, dimensions=None)[0][0]


def write_transcripts(store: Store, *names: str, text: str = "A vault, says a person") -> None:
    texts = {DocumentKey("sessions", f"sessions/{name}"): f"{text} in {name}." for name in names}
    store.write([document(key, text, vectors=[embed(text)]) for key, text in texts.items()])


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    folder = tmp_path / "sessions"
    folder.mkdir()
    for name in TRANSCRIPTS:
        (folder / name).write_bytes(message_line("openclaw", "user", f"A vault, says {name}."))
    (folder / "sessions.json").write_text(json.dumps(STORED), "utf-8")
    return folder


@pytest.fixture
def talking(settings: Settings, workspace: Path, sessions: Path) -> Settings:
    """An agent with these transcripts, a note of each, and another note."""
    for name in TRANSCRIPTS:
        (workspace / note_name(name)).write_text(note_of(name), "utf-8")
    (workspace / "memory" / "vault.md").write_text("A vault is a cellar.\n", "utf-8")
    return settings


@pytest.fixture
def opened(talking: Settings, sessions: Path) -> Iterator[Callable[..., SearchManager]]:
    """A function that opens the memory with these settings; `opened.store` writes its index."""
    store = write_index(talking)
    write_transcripts(store, *TRANSCRIPTS)
    with ExitStack() as stack:

        def open_memory(**settings: Any) -> SearchManager:
            changed = with_agent(talking, **{"sessions": [str(sessions)], **settings})
            return stack.enter_context(searching(changed))

        open_memory.store = store  # type: ignore[attr-defined]
        yield open_memory
    store.close()


def answer_to(manager: SearchManager, session_key: str | None, query: str = "vault", **request: Any) -> SearchAnswer:
    answer = manager.search(
        SearchRequest(**{"query": query, "max_results": 100, "min_score": 0, "session_key": session_key, **request})
    )
    assert answer.error is None
    return answer


def found(manager: SearchManager, session_key: str | None, **request: Any) -> set[str]:
    """Paths of all that an answer names."""
    results = answer_to(manager, session_key, **request).results
    return {path for hit in results for path in (hit.path, *(hit.also_in.paths if hit.also_in else ()))}


def read(manager: SearchManager, path: str, session_key: str | None) -> str:
    return manager.read_file(GetRequest(path=path, session_key=session_key)).text


@pytest.mark.parametrize("provider", ["stub", "none"])
def test_a_session_finds_transcripts_of_its_own_place_and_the_notes_made_of_them(opened, provider: str) -> None:
    manager = opened(provider=provider)

    assert {key: found(manager, key) for key in VISIBLE} == {key: expected(names) for key, names in VISIBLE.items()}


def test_a_session_reads_no_other_transcript_or_note_than_it_finds(opened) -> None:
    manager = opened()
    paths = expected({*TRANSCRIPTS})

    for key, names in VISIBLE.items():
        assert {path for path in paths if read(manager, path, key)} == expected(names), key


@pytest.mark.parametrize("path", ["sessions/claude.jsonl", note_name("owner.jsonl")])
def test_a_refusal_does_not_tell_whether_a_private_document_is_there(opened, path: str) -> None:
    manager = opened()
    refused, absent = (
        manager.read_file(GetRequest(path=name, session_key=GROUP)).model_dump(exclude={"path", "refused"})
        for name in (path, path.replace("l.md", "x.md").replace("claude", "never"))
    )

    assert refused == absent
    assert refused["status"] == "not_found"


@pytest.mark.parametrize(
    ("chosen", "direct", "group"),
    [("owner", {"ada.jsonl"}, GROUPS), ("direct", {*TRANSCRIPTS}, GROUPS), ("all", {*TRANSCRIPTS}, {*TRANSCRIPTS})],
)
def test_the_setting_shows_private_transcripts_to_more_sessions(
    opened, chosen: str, direct: set[str], group: set[str]
) -> None:
    manager = opened(scope={"private_transcripts": chosen})
    ada = "agent:main:telegram:direct:ada"

    assert found(manager, ada) == expected(direct)
    assert found(manager, GROUP) == expected(group)
    assert bool(read(manager, "sessions/bob.jsonl", ada)) is (chosen != "owner")
    assert bool(read(manager, note_name("bob.jsonl"), GROUP)) is (chosen == "all")


@pytest.mark.parametrize("damaged", ["{", "[]", "too large", "a link", "gone"])
def test_without_a_session_store_that_can_be_read_every_transcript_is_private(
    opened, sessions: Path, tmp_path: Path, damaged: str
) -> None:
    manager, stored = opened(), sessions / "sessions.json"
    assert found(manager, GROUP) == expected(GROUPS)
    if damaged == "too large":
        os.truncate(stored, 70_000_000)
    elif damaged in ("a link", "gone"):
        stored.rename(tmp_path / "elsewhere.json")
        if damaged == "a link":
            stored.symlink_to(tmp_path / "elsewhere.json")
    else:
        stored.write_text(damaged)

    assert found(manager, GROUP) == expected(set())
    assert not read(manager, "sessions/group.jsonl", GROUP)
    assert found(manager, None) == expected({*TRANSCRIPTS})


def test_a_transcript_is_private_from_the_moment_its_key_leaves_the_store(opened, sessions: Path) -> None:
    manager = opened()
    assert found(manager, GROUP) == found(manager, GROUP) == expected(GROUPS)

    left = {key: entry for key, entry in STORED.items() if not key.endswith("topic:7")}
    (sessions / "sessions.json").write_text(json.dumps(left), "utf-8")

    assert found(manager, GROUP) == expected(GROUPS - {"topic.jsonl"})


def test_a_transcript_whose_name_another_folder_has_too_is_private(opened, sessions: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "group.jsonl").write_bytes(message_line("plain", "user", "A vault."))
    manager = opened(sessions=[str(other), str(sessions)])

    assert found(manager, GROUP) == expected({"topic.jsonl", "earlier.jsonl"})


EDITED = {
    "moved to the end": lambda text: "\n".join(reversed(text.splitlines())),
    "indented, with another bullet and other line ends": lambda text: text.replace("- T", "  *  T").replace(
        "\n", "\r\n"
    ),
    "below another transcript's": lambda text: f"- Transcript: sessions/group.jsonl\n{text}",
    "far from the words": lambda text: "vault\n\n" + "No more. " * 4_000 + "\n\n" + text,
}


@pytest.mark.parametrize("edit", EDITED.values(), ids=EDITED)
def test_a_note_made_of_a_private_transcript_is_known_after_an_edit(opened, workspace: Path, edit) -> None:
    name = note_name("owner.jsonl")
    (workspace / name).write_text(edit(note_of("owner.jsonl")), "utf-8")
    manager = opened()
    key = DocumentKey("memory", name)
    write_document(opened.store, manager.files, key, None)

    assert name in found(manager, None)
    assert name not in found(manager, GROUP)
    assert not read(manager, name, GROUP)
    assert name in found(manager, None)


def test_a_note_that_openclaw_made_of_a_session_is_for_the_place_of_its_key(opened, workspace: Path) -> None:
    lines = "# Session: 2026-03-04\n\n- **Session Key**: {}\n- **Session ID**: s1\n\nuser: A vault.\n"
    notes = {"memory/mine.md": "agent:main:main", "memory/ours.md": f"{GROUP}:topic:7"}
    manager = opened()
    for name, key in notes.items():
        (workspace / name).write_text(lines.format(key), "utf-8")
        write_document(opened.store, manager.files, DocumentKey("memory", name), None)

    assert notes.keys() & found(manager, None) == notes.keys()
    assert notes.keys() & found(manager, GROUP) == {"memory/ours.md"}
    assert not read(manager, "memory/mine.md", GROUP)


def test_a_note_is_private_if_either_its_file_or_its_indexed_text_says_so(opened, workspace: Path) -> None:
    manager, edited, begun = opened(), note_name("owner.jsonl"), "memory/vault.md"
    assert begun in found(manager, GROUP)
    (workspace / edited).write_text("A vault, and no line about where from.\n", "utf-8")
    (workspace / begun).write_text(note_of("owner.jsonl"), "utf-8")

    assert not {edited, begun} & found(manager, GROUP)
    assert not read(manager, edited, GROUP)
    assert not read(manager, begun, GROUP)
    assert {edited, begun} <= found(manager, None)


def test_text_that_a_private_transcript_holds_too_does_not_tell_a_group_of_it(opened, workspace: Path) -> None:
    text = "The numbat is shy."
    (workspace / "memory" / "numbat.md").write_text(f"{text}\n", "utf-8")
    manager = opened()
    write_document(opened.store, manager.files, DocumentKey("memory", "memory/numbat.md"), StubProvider())
    private = DocumentKey("sessions", "sessions/numbat.jsonl")
    opened.store.write([document(private, text, vectors=[embed(text)])])

    assert found(manager, None, query=text) >= {"memory/numbat.md", "sessions/numbat.jsonl"}
    answer = answer_to(manager, GROUP, query=text).model_dump_json()
    assert "memory/numbat.md" in answer
    assert "numbat.jsonl" not in answer
    assert "owner" not in answer


@pytest.mark.parametrize("session_key", [GROUP, CHANNEL])
@pytest.mark.parametrize("provider", ["stub", "none"])
def test_a_group_finds_its_note_behind_200_private_transcripts(opened, provider: str, session_key: str) -> None:
    manager, query = opened(provider=provider), "which harbour has the yellow lantern"
    private = [f"private-{number}.jsonl" for number in range(200)]
    write_transcripts(opened.store, *private, text=query)
    note = DocumentKey("memory", "memory/harbour.md")
    text = "A long note of many things, in which somewhere stands: lantern."
    opened.store.write([document(note, text, vectors=[embed(text)])])

    assert note.path not in found(manager, None, query=query, max_results=6)
    assert answer_to(manager, session_key, query=query, max_results=6, min_score=None).results[0].path == note.path


@pytest.mark.parametrize("session_key", VISIBLE)
def test_a_prompt_gets_passages_of_those_documents_only_that_its_session_finds(opened, session_key: str | None) -> None:
    injection = {"enabled": True, "timeout_ms": 60_000, "min_score": 0, "max_results": 20, "max_chars": 100_000}
    manager = opened(context={"injection": injection}, query={"max_results": 100})
    context = AgentContext(
        Settings(home=Path("/nowhere")), manager.agent, manager, InjectedSessions(), reading=manager.reading
    )
    sources = set()
    # A conversation has one passage: of the document that is named.
    for name in (*TRANSCRIPTS, *map(note_name, TRANSCRIPTS), "cellar"):
        prompt = PromptRequest(prompt=f"vault {name}", session_key=session_key)
        blocks = asyncio.run(context.before_prompt(prompt)).blocks
        sources |= {block.source.partition("#")[0] for block in blocks}

    assert sources == expected(VISIBLE[session_key])


def test_a_group_that_asks_for_transcripts_alone_gets_an_empty_answer(opened) -> None:
    answer = answer_to(opened(), CHANNEL, sources=("sessions",))

    assert answer.results == ()
    assert answer.unavailable is None
