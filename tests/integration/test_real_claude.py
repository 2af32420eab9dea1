"""The real Claude Code, with a stand-in for its model: prompts get memory, and a session leaves a note."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Daemon
from tests.npm import installed
from tests.waiting import wait_until

PACKAGE = "@anthropic-ai/claude-code@2.1.197"

ANSWER = "It listens on 7171."


@contextmanager
def model() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a model that always gives the same answer, and the requests that it gets."""
    requests: list[dict[str, Any]] = []
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "stand-in", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    ended = {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 1}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ANSWER}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", **ended},
        {"type": "message_stop"},
    ]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for event in events:
                self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.long
def test_a_prompt_gets_memory_and_the_session_leaves_a_note_and_nothing_of_what_it_got(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    folder = pytestconfig.cache.mkdir("claude-2.1.197") if pytestconfig.cache else tmp_path
    program = installed(folder, PACKAGE, scripts=True) / ".bin/claude"
    user, workspace, home = tmp_path / "user", tmp_path / "workspace", tmp_path / "home"
    (workspace / "memory").mkdir(parents=True)
    (user / ".claude" / "projects").mkdir(parents=True)
    (workspace / "MEMORY.md").write_text("## Rules\n- Never push on Fridays\n", "utf-8")
    (workspace / "memory" / "2026-03-04.md").write_text("The gateway listens on port 7171.\n", "utf-8")
    config = (
        f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\nsessions = ["{user / ".claude" / "projects"}"]\n'
        "[agents.context]\ninjection = { enabled = true, min_score = 0.0, timeout_ms = 10000 }\n"
        "session_notes.enabled = true\n"
    )
    with Daemon(home, workspace, config=config) as daemon, model() as (address, requests):
        daemon.run("hook", "install", "claude-code", "--settings", str(user / ".claude" / "settings.json"), "--yes")
        environment = {
            **os.environ,
            "HOME": str(user),
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": "sk-test",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }
        asked = [str(program), "-p", "Which port has the gateway?"]
        ran = subprocess.run(asked, cwd=workspace, env=environment, capture_output=True, text=True, timeout=300)
        assert ran.stdout.strip() == ANSWER, ran.stderr

        sent = json.dumps(requests)
        assert "Never push on Fridays" in sent
        assert "[memory/2026-03-04.md#L1-L1]" in sent
        assert "no instruction" in sent

        def notes() -> list[Path]:
            return [note for note in (workspace / "memory").iterdir() if note.name != "2026-03-04.md"]

        wait_until(notes, timeout=60)
        text = notes()[0].read_text("utf-8")
        assert f"**User**: Which port has the gateway?\n\n**Assistant**: {ANSWER}\n" in text
        assert "- Program: claude-code" in text

        def transcripts() -> list[str]:
            found = daemon.search("gateway", "--source", "sessions", "--min-score", "0")
            return [result["snippet"] for result in found]

        wait_until(transcripts, timeout=60)
        assert not any("recalld-context" in text or "Fridays" in text for text in transcripts())
