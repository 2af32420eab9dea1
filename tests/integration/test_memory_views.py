"""Views of the page over HTTP: documents, their tree, days, and turns of conversations."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory.store.writer import Store
from schemas.documents import DocumentKey, FileStat
from schemas.settings import Settings
from tests.serving import running
from tests.storing import document
from tests.transcript_files import UNSAID, message_line
from tests.written_index import with_agent, with_agents, write_index

DAY = datetime(2026, 2, 3, 12, tzinfo=UTC).timestamp()
TALK = DocumentKey("sessions", "sessions/0a-1.jsonl")
NOTES = ("2026-02-03.md", "2026-02-04.md", "topics/deep/a.md")
TITLE, RESUME = f"{UNSAID} · 2026-02-03 · Hello", f"cd /srv/u/{UNSAID} && claude --resume 0a-1"


def got(client: httpx.Client, view: str, **parameters: Any) -> dict[str, Any]:
    """The answer of one view."""
    response = client.get(view, params=parameters)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.fixture
def talking(settings: Settings, workspace: Path, tmp_path: Path) -> Settings:
    """Settings of a memory with notes in folders, and a conversation of a hundred turns and one secret."""
    sessions = tmp_path / "sessions"
    (workspace / "memory" / "topics" / "deep").mkdir(parents=True)
    sessions.mkdir()
    for name in NOTES:
        (workspace / "memory" / name).write_text(f"# About {name}\n\nWords.\n", "utf-8")
    settings = with_agent(settings, sessions=[str(sessions)])
    words = ["ghp_" + "a1B2" * 9, *[f"Turn {number}" for number in range(2, 101)]]
    lines = [message_line("claude-code", "user" if at % 2 == 0 else "assistant", text) for at, text in enumerate(words)]
    write_index(with_agent(settings, sources=["memory"])).close()
    file = sessions / "0a-1.jsonl"
    file.write_bytes(b"".join(lines))
    os.utime(file, (DAY, DAY))
    with_talk(write_index(with_agent(settings, sources=["memory"])), file)
    return settings


def with_talk(store: Store, file: Path) -> None:
    result = file.stat()
    stat = FileStat(size=result.st_size, mtime_ns=result.st_mtime_ns, inode=result.st_ino)
    write = document(TALK, "[2026-02-03 09:00] User: Hello\n[2026-02-03 09:01] Assistant: Good morning")
    store.write([replace(write, stat=stat)])
    store.close()


def test_documents_come_newest_first_with_titles_and_by_day(talking: Settings) -> None:
    with running(talking) as client:
        latest = got(client, "/v1/documents")["documents"]
        assert {one["title"] for one in latest} == {TITLE, *(f"About {name}" for name in NOTES)}
        assert latest[-1] == {
            "agent": "main",
            "source": "sessions",
            "path": TALK.path,
            "changedAt": DAY,
            "title": TITLE,
            "resume": RESUME,
        }
        [note] = got(client, "/v1/documents", day="2026-02-03", source="memory")["documents"]
        assert (note["path"], note["words"]) == ("memory/2026-02-03.md", "Words.")
        [talk] = got(client, "/v1/documents", day="2026-02-03", source="sessions")["documents"]
        assert talk["path"] == TALK.path
        assert got(client, "/v1/documents", day="9999-12-31") == {"folders": [], "documents": []}
        assert got(client, "/v1/days", since="2026-02-03")["days"] == [
            {"date": "2026-02-03", "notes": 1, "conversations": 1},
            {"date": "2026-02-04", "notes": 1, "conversations": 0},
        ]


def test_a_tree_opens_level_by_level_and_joins_folders_without_documents(talking: Settings) -> None:
    with running(talking) as client:
        top = got(client, "/v1/documents", under="")
        assert (top["folders"], top["documents"]) == ([{"path": "memory/", "documents": 3}], [])
        below = got(client, "/v1/documents", under="memory")
        assert below["folders"] == [{"path": "memory/topics/deep/", "documents": 1}]
        assert [one["path"] for one in below["documents"]] == ["memory/2026-02-03.md", "memory/2026-02-04.md"]
        assert got(client, "/v1/documents", under="../")["folders"] == []


def test_a_level_with_many_documents_has_pages(settings: Settings) -> None:
    store = write_index(settings)
    store.write([document(DocumentKey("memory", f"memory/n{number:02}.md"), "words") for number in range(50)])
    store.close()
    with running(settings) as client:
        first = got(client, "/v1/documents", under="memory/")
        second = got(client, "/v1/documents", under="memory/", offset=first["next"])
    paths = [one["path"] for one in (*first["documents"], *second["documents"])]
    assert paths == [f"memory/n{number:02}.md" for number in range(50)]
    assert "next" not in second


def test_an_agents_token_shows_its_own_documents_alone(settings: Settings) -> None:
    settings = with_agents(settings, "alpha", "beta", note="2026-02-03-{name}")
    for agent in settings.agents:
        write_index(settings, agent.id).close()
    with running(settings) as client:
        assert client.get("/v1/documents").status_code == 401
        client.headers["Authorization"] = f"Bearer {(settings.home / 'run' / 'tokens' / 'beta').read_text().strip()}"
        assert [one["agent"] for one in got(client, "/v1/documents")["documents"]] == ["beta"]
        assert got(client, "/v1/days", since="2026-01-01")["days"][0]["notes"] == 1
        for path in ("/v1/documents", "/v1/turns"):
            assert client.get(path, params={"agent": "alpha", "under": "", "path": TALK.path}).status_code == 403
        client.headers["Authorization"] = f"Bearer {(settings.home / 'run' / 'owner-token').read_text().strip()}"
        assert {one["agent"] for one in got(client, "/v1/documents")["documents"]} == {"alpha", "beta"}


def test_turns_come_in_pages_around_a_line_without_secrets(talking: Settings) -> None:
    with running(talking) as client:
        first = got(client, "/v1/turns", path=TALK.path)
        assert (first["turns"][0]["speaker"], first["turns"][0]["text"]) == ("User", "[redacted:github-token]")
        assert (len(first["turns"]), first["earlier"], first["nextFrom"]) == (40, False, 41)
        assert first["resume"] == RESUME
        around = got(client, "/v1/turns", path=TALK.path, line=98, before=2, count=40)
        assert [turn["line"] for turn in around["turns"]] == [96, 97, 98, 99, 100]
        assert (around["earlier"], "nextFrom" in around) == (True, False)
        above = got(client, "/v1/turns", path=TALK.path, line=3, before=40, count=0)
        assert [turn["text"] for turn in above["turns"]][1:] == ["Turn 2"]
        assert "not found" in got(client, "/v1/turns", path="../../etc/passwd")["error"]
        assert "note" in got(client, "/v1/turns", path="memory/2026-02-03.md")["error"]


def test_turns_of_a_transcript_whose_file_is_gone_come_from_the_index(talking: Settings, tmp_path: Path) -> None:
    (tmp_path / "sessions" / "0a-1.jsonl").unlink()
    with running(talking) as client:
        answer = got(client, "/v1/turns", path=TALK.path)
    assert [(turn["speaker"], turn["text"]) for turn in answer["turns"]] == [
        ("User", "Hello"),
        ("Assistant", "Good morning"),
    ]
    assert answer["warning"]
    assert "resume" not in answer
