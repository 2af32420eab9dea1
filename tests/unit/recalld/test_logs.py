"""Lines of a log: JSON, with who wrote them, and with nobody's words but ours."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest
import structlog

from recalld.logs import configure_logs, without_foreign_words
from schemas.errors import Transient


class Configured:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> None:
        self.stream = io.StringIO()
        monkeypatch.setattr(self.stream, "isatty", lambda: terminal, raising=False)
        monkeypatch.setattr(sys, "stderr", self.stream)
        # Pytest's own handlers: with them there, nothing would be set up.
        logging.getLogger().handlers = []
        configure_logs(process="work")
        self.log = structlog.get_logger("test")

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    root, names = logging.getLogger(), ("dramatiq", "dramatiq.worker")
    handlers, level, levels = list(root.handlers), root.level, [logging.getLogger(name).level for name in names]
    yield lambda *, terminal=False: Configured(monkeypatch, terminal=terminal)
    root.handlers = handlers
    root.setLevel(level)
    for name, before in zip(names, levels, strict=True):
        logging.getLogger(name).setLevel(before)
    structlog.reset_defaults()


#: Not a literal where it is raised: a traceback shows the line.
WORD = "quokka"


def failure() -> Exception:
    class Note(pydantic.BaseModel):
        line: int

    try:
        try:
            Note.model_validate({"line": f"the {WORD} sleeps"})
        except pydantic.ValidationError as error:
            raise Transient(f"the endpoint rests (HTTP 503: the {WORD} (sleeps) here)") from error
    except Transient as error:
        return error


def test_a_line_says_what_happened_where_and_in_which_process(configured: Any) -> None:
    logs = configured()
    with structlog.contextvars.bound_contextvars(agent="main", job_id="7"):
        logs.log.info("documents_indexed", documents=3)
    [line] = logs.lines()
    assert {key: line[key] for key in ("event", "process", "agent", "job_id", "documents", "level")} == {
        "event": "documents_indexed",
        "process": "work",
        "agent": "main",
        "job_id": "7",
        "documents": 3,
        "level": "info",
    }
    assert line["pid"] > 0


def test_an_exception_is_its_frames_and_types_and_our_own_words(configured: Any) -> None:
    logs = configured()
    logs.log.error("job_failed", exc_info=failure(), error="openai failed (HTTP 503: the quokka)")
    [line] = logs.lines()
    assert WORD not in json.dumps(line)
    assert line["error"] == "openai failed (HTTP 503)"
    assert line["exception"].endswith("(HTTP 503)")
    assert "ValidationError\n" in line["exception"]
    assert "test_logs.py" in line["exception"]


def test_what_libraries_log_is_a_line_like_ours_without_secrets(configured: Any) -> None:
    logs = configured()
    try:
        int(f"a {WORD}")
    except ValueError:
        logging.getLogger("httpx").exception("it asked %s\n", "https://x/?token=ghp_" + "a1B2c3D4e5F6" * 3)
    [line] = logs.lines()
    message = "it asked https://x/?token=[redacted:github-token]\n"
    assert (line["event"], line["logger"], line["message"]) == ("library", "httpx", message)
    assert line["process"] == "work"
    assert "ValueError" in line["exception"]
    assert WORD not in json.dumps(line)


def test_a_name_gives_a_terminal_no_commands(configured: Any) -> None:
    logs = configured(terminal=True)
    logs.log.warning("document_failed", path="memory/\x1b]0;title\x07\nforged.md", more=["\x9b2J"])
    logs.log.warning("document_failed", path="memory/\x1b]0;t\x07.md", other="\x9b31m")
    logging.getLogger("httpx").warning("slow \x1b[2J")
    said = logs.stream.getvalue()
    assert not any(command in said for command in ("\x1b]", "\x07", "\x9b", "\x1b[2J", "\nforged"))
    assert "forged.md" in said
    assert "httpx" in said
    assert "{" not in said, "a terminal gets no JSON"


@pytest.mark.parametrize(
    ("sentence", "logged"),
    [
        ("gemini refused the text (HTTP 400: cannot embed 'a (b) c')", "gemini refused the text (HTTP 400)"),
        ("openai refused the key (HTTP 401): check KEY", "openai refused the key (HTTP 401): check KEY"),
        ("unexpected UnicodeError: the quokka", "unexpected UnicodeError"),
        ("the embedding batch failed: ValueError: the quokka", "the embedding batch failed: ValueError"),
        ("the local model failed on it: TypeError: the quokka", "the local model failed on it: TypeError"),
        ("the disk is full: free some space", "the disk is full: free some space"),
    ],
)  # fmt: skip
def test_of_a_sentence_that_quotes_others_our_part_is_logged(sentence: str, logged: str) -> None:
    assert without_foreign_words(sentence) == logged
