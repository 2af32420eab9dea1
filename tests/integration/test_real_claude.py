"""The real Claude Code, with a stand-in for its model: prompts get memory, and a session leaves a note."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
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


#: Takes a request to the model, and returns a text, or the name and the arguments of a tool to call.
Reply = Callable[[dict[str, Any]], str | tuple[str, dict[str, Any]]]


@contextmanager
def model(answer: str | Reply = ANSWER) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a model that always gives the same answer, or the one of a function, and its requests."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(request)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for event in _events(answer if isinstance(answer, str) else answer(request)):
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


def _events(reply: str | tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The stream of one answer."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "stand-in", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    if isinstance(reply, str):
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": reply}
    else:
        block = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex}", "name": reply[0], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(reply[1])}
    reason = "end_turn" if isinstance(reply, str) else "tool_use"
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]


class Claude:
    """The program, with a user's folder, a workspace with this MEMORY.md, and a daemon that gives prompts memory."""

    def __init__(self, folder: Path, config: pytest.Config, *, memory: str) -> None:
        programs = config.cache.mkdir("claude-2.1.197") if config.cache else folder
        self.program = installed(programs, PACKAGE, scripts=True) / ".bin/claude"
        self.user, self.workspace = folder / "user", folder / "workspace"
        (self.workspace / "memory").mkdir(parents=True)
        (self.user / ".claude" / "projects").mkdir(parents=True)
        (self.workspace / "MEMORY.md").write_text(memory, "utf-8")
        settings = (
            f'[[agents]]\nid = "main"\nworkspace = "{self.workspace}"\n'
            f'sessions = ["{self.user / ".claude" / "projects"}"]\n'
            "[agents.context]\ninjection = { enabled = true, min_score = 0.0, timeout_ms = 10000 }\n"
            "session_notes.enabled = true\n"
        )
        self.daemon = Daemon(folder / "home", self.workspace, config=settings)

    def say(self, address: str, *arguments: str) -> str:
        """Return the program's answer. `address`: the model."""
        environment = {
            **os.environ,
            "HOME": str(self.user),
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": "sk-test",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }
        command = [str(self.program), "-p", *arguments]
        ran = subprocess.run(
            command, cwd=self.workspace, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    def install(self) -> None:
        """Install the hooks."""
        file = self.user / ".claude" / "settings.json"
        self.daemon.run("hook", "install", "claude-code", "--settings", str(file), "--yes")


@pytest.mark.long
def test_a_prompt_gets_memory_and_the_session_leaves_a_note_without_that_memory(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    claude = Claude(tmp_path, pytestconfig, memory="## Rules\n- Never push Fridays\n")
    workspace = claude.workspace
    (workspace / "memory" / "2026-03-04.md").write_text("The gateway listens on port 7171.\n", "utf-8")
    with claude.daemon as daemon, model() as (address, requests):
        claude.install()
        assert claude.say(address, "Which port has the gateway?") == ANSWER

        sent = json.dumps(requests)
        assert "Never push Fridays" in sent
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


@pytest.mark.long
def test_a_changed_fact_comes_from_memory_md_and_no_session_gets_itself(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    claude = Claude(tmp_path, pytestconfig, memory="The gateway listens on port 18789.\n")
    first, question = str(uuid.uuid4()), "Which port has the gateway?"
    with claude.daemon as daemon, model("The gateway listens on port 18789.") as (address, requests):
        claude.install()
        claude.say(address, "--session-id", first, question)

        def paths(query: str, *arguments: str) -> set[str]:
            return {result["path"] for result in daemon.search(query, "--min-score", "0", *arguments)}

        def first_conversation() -> set[str]:
            # Without a source, a conversation and its note are one result.
            both = (path for source in ("memory", "sessions") for path in paths("gateway 18789", "--source", source))
            return {path for path in both if first in path or path.startswith("memory/")}

        wait_until(lambda: len(first_conversation()) == 2, what="its transcript and its note are indexed")
        of_first = first_conversation()
        daemon.write("MEMORY.md", "The gateway listens on port 20001.\n")
        wait_until(lambda: "MEMORY.md" in paths("20001") and "MEMORY.md" not in of_texts(daemon, "18789"))

        def sources(*arguments: str) -> list[str]:
            """Return the paths of the passages that the model gets with the last argument, a question."""
            begun = len(requests)
            claude.say(address, *arguments)
            asked = [text for one in requests[begun:] if arguments[-1] in (text := json.dumps(one["messages"]))]
            assert "20001" in asked[-1], "it comes from MEMORY.md"
            return re.findall(r"\[((?:MEMORY\.md|memory/|sessions/)[^\]#]*)#L", asked[-1])

        new = sources("Which port does the gateway listen on today?")
        assert ("MEMORY.md" in new, len(of_first.intersection(new)) <= 1) == (True, True)
        assert not of_first.intersection(sources("--resume", first, question))


def of_texts(daemon: Daemon, text: str) -> set[str]:
    """Return the paths of results whose snippets hold a text."""
    return {result["path"] for result in daemon.search(text, "--min-score", "0") if text in result["snippet"]}
