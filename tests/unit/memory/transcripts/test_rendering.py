from __future__ import annotations

import pytest

from memory.transcripts import rendering
from memory.transcripts.interpreter import Interpreter
from memory.transcripts.rendering import RenderedLines, render_lines
from tests.transcript_files import (
    FORMATS,
    UNSAID,
    codex_transcript,
    conversation,
    damaged,
    message_line,
    transcript,
    unknown_line,
)
from tests.transcript_folds import folded, raw_lines


def rendered(
    data: bytes, first: int = 1, count: int = 10_000, *, name: str | None = None, most: int = 10**9
) -> RenderedLines:
    return render_lines(iter(raw_lines(data)), first=first, count=count, format=name, redact=str, max_characters=most)


@pytest.mark.parametrize("name", FORMATS)
def test_each_line_shows_what_was_said_in_that_line_of_the_file(name: str) -> None:
    data = damaged(transcript(name))
    page = rendered(data)
    assert page.total == len(page.lines) == len(raw_lines(data))
    assert [line for line in page.lines if line] == [
        f"[{said.at:%Y-%m-%d %H:%M}] {'User' if said.role == 'user' else 'Assistant'}: {' '.join(said.text.split())}"
        for said in conversation()
    ]
    assert UNSAID not in "".join(page.lines)


@pytest.mark.parametrize("name", FORMATS)
def test_the_lines_that_a_chunk_cites_show_its_messages(name: str) -> None:
    data = transcript(name)
    _, chunks = folded(data, overlap=0)
    for chunk in chunks:
        count = chunk.end_line - chunk.start_line + 1
        page = rendered(data, chunk.start_line, count)
        assert page.lines[0]
        assert page.lines[-1]
        assert " ".join(line for line in page.lines if line) == " ".join(chunk.text.split())


@pytest.mark.parametrize("data", [*map(transcript, FORMATS), codex_transcript(events_only=True)])
def test_a_page_shows_its_lines_as_the_whole_file_does_wherever_it_begins(data: bytes) -> None:
    whole = rendered(data).lines
    for first in range(1, len(whole) + 1):
        for count in (1, 3, 1000):
            page = rendered(data, first=first, count=count)
            assert (page.lines, page.total) == (whole[first - 1 : first - 1 + count], len(whole))


def test_a_page_ends_before_the_line_that_does_not_fit() -> None:
    data = b"".join(message_line("plain", "user", f"{number} " + "word " * 20) for number in range(4))
    page = rendered(data, most=300)
    assert len(page.lines) == 2
    assert page.cut_from is None
    assert sum(map(len, page.lines)) + 1 <= 300


def test_a_line_that_is_longer_than_a_page_alone_is_cut() -> None:
    data = message_line("plain", "user", "word " * 500)
    page = rendered(data + data, most=100)
    assert len(page.lines) == 1
    assert 50 <= len(page.lines[0]) <= 100
    assert page.cut_from == len(rendered(data).lines[0])


def test_a_page_beyond_the_end_is_empty() -> None:
    assert rendered(message_line("plain", "user", "hi"), first=5) == RenderedLines(5, (), 1)
    assert rendered(b"") == RenderedLines(1, (), 0)


def test_an_unterminated_last_line_is_a_line() -> None:
    line = message_line("plain", "user", "hi")
    assert rendered(line + line[:-1]).lines[1].endswith("User: hi")
    assert rendered(line + line[:-5]).lines == (rendered(line).lines[0], "")


def test_a_line_that_is_too_long_to_be_read_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memory.transcripts.lines.MAX_LINE_BYTES", 100)
    data = message_line("plain", "user", "x" * 100) + message_line("plain", "user", "hi")
    too_long, said = rendered(data).lines
    assert "too long to be shown" in too_long
    assert said.endswith("hi")


def test_secrets_are_not_shown() -> None:
    data = message_line("plain", "user", "open\nsesame\nnow")
    lines = iter(raw_lines(data))
    page = render_lines(lines, first=1, count=1, format=None, redact=lambda text: text.replace("sesame", "***"))
    assert page.lines == ("[2026-02-03 09:00] User: open *** now",)


def test_lines_that_nobody_asked_for_are_not_parsed_once_the_format_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0
    real = Interpreter.read

    def counted(self: Interpreter, data: bytes) -> object:
        nonlocal parsed
        parsed += 1
        return real(self, data)

    monkeypatch.setattr(rendering.Interpreter, "read", counted)
    data = unknown_line() * 2 + message_line("plain", "user", "hi") * 100
    assert rendered(data, first=50, count=2).total == 102
    assert parsed == 2 + 1 + 2
