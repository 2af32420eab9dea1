"""Logs of every process hold no content of notes and no secret, at any fault."""

from __future__ import annotations

import json
import random
from pathlib import Path

import httpx
import pytest

from tests.daemon import Daemon
from tests.embedding_server import EmbeddingServer, Failure
from tests.secret_samples import PASSWORD, made
from tests.waiting import wait_until

TOKEN = made("ghp_{A36}", random.Random(7))
#: Words that nothing but notes, transcripts and queries hold.
WORDS = ("zanzibarquokka", "marzipanlemur", "gondolierwombat", "pumpernickelibis")

CONFIG = """
model = "m"
[remote]
base_url = "{url}"
api_key = "a-key"
[[agents]]
id = "main"
workspace = "{workspace}"
sessions = ["{sessions}"]
"""


@pytest.mark.long
def test_no_log_of_any_process_holds_a_note_a_transcript_a_query_or_a_secret(home: Path, workspace: Path) -> None:
    sessions = workspace.parent / "sessions"
    sessions.mkdir()
    with EmbeddingServer() as server:
        config = CONFIG.format(sessions=sessions, workspace=workspace, url=server.url)
        daemon = Daemon(home, workspace, provider="openai", config=config)
        daemon.write("memory/a.md", f"The {WORDS[0]} pushes with {TOKEN}.\nPassword: {PASSWORD}\n")
        # A provider that quotes what it was sent: for good, in passing, and with a refused key.
        quoting = f"cannot embed 'The {WORDS[0]} pushes with {TOKEN}'"
        for status in (500, 503, 429, 400, 403):
            server.fail_next(Failure(status=status, message=quoting), times=2)
        with daemon:
            said = {"role": "user", "content": f"Is it {WORDS[1]} with {TOKEN}?", "timestamp": 1767225600}
            broken = '{"role": "user", "content": "' + WORDS[1]
            (sessions / "one.jsonl").write_text(json.dumps(said) + "\n" + broken + "\n", "utf-8")
            daemon.write("memory/b.md", f"{WORDS[0]} again\n")
            daemon.write("memory/\udcff.md", f"{WORDS[0]} under a name that is no text\n")
            wait_until(lambda: daemon.found(WORDS[0], "memory/a.md"))
            wait_until(lambda: daemon.found(WORDS[1], "sessions/one.jsonl"))
            server.fail_next(Failure(status=500, message=f"what is {WORDS[2]} {TOKEN}?"), times=3)
            with httpx.Client(base_url=f"http://127.0.0.1:{daemon.port()}", timeout=60) as client:
                for body in ({"query": f"{WORDS[2]} {TOKEN}"}, {"query": WORDS[2], "oops": WORDS[3]}, {"query": 7}):
                    client.post("/v1/search", json=body)
                client.post("/v1/search", content=f'{{"query": "{WORDS[2]}')
                client.post("/v1/get", json={"path": f"../{WORDS[3]}.md"})
                client.post("/v1/tools", json={"name": WORDS[3], "arguments": {"query": WORDS[2]}})
                client.post("/v1/tools", json={"name": "memory_search", "arguments": f"{{{WORDS[2]}"})
                client.get("/metrics")
            daemon.run("emit", "changed", f"/nowhere/{WORDS[3]}.md")
            wait_until(lambda: "event_refused" in (home / "log" / "watch.log").read_text("utf-8"))
        logs = {path.name: path.read_text("utf-8") for path in sorted(home.rglob("*.log"))}
        logs["up"] = daemon.said()
    assert {"watch.log", "work-1.log", "serve.log", "up"} <= logs.keys()
    assert "documents_indexed" in logs["work-1.log"]
    for name, text in logs.items():
        assert [word for word in (*WORDS, TOKEN, PASSWORD) if word in text] == [], f"{name}: {text}"
