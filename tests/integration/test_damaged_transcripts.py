"""What a person reads of a compressed transcript that cannot be read to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory.transcripts import lines as line_reading
from tests.commanding import CommandLine
from tests.transcript_files import message_line, transcript

try:
    from compression.zstd import compress
except ImportError:
    from backports.zstd import compress


@pytest.mark.parametrize("said", [True, False])
def test_a_dead_letter_names_the_file_and_says_what_is_indexed_of_it(
    commands: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch, *, said: bool
) -> None:
    monkeypatch.setattr(line_reading, "SPARE_BYTES", 1_000_000)
    sessions = home.parent / "sessions"
    sessions.mkdir()
    before = transcript("openclaw", 1, bare=True) + message_line("openclaw", "user", "Where is the quokka?")
    (sessions / "bomb.jsonl.zst").write_bytes(compress((before if said else b"") + b"\0" * 30_000_000))
    config = home.parent / "recalld.toml"
    config.write_text(f'{config.read_text()}sessions = ["{sessions}"]\n')
    commands.run("index")
    shown = commands.say("dead", "show", "sessions/bomb.jsonl")
    assert "reason   sessions/bomb.jsonl.zst: the compressed transcript unpacks to more than" in shown
    assert ("; what was read of it is indexed; if it is one, unpack the file" in shown) == said
    assert ("; nothing of it could be indexed;" in shown) == (not said)
    assert ("indexed  nothing of it" in shown) == (not said)
    # The name of the file is as good as that of the document.
    dropped = commands.say("dead", "drop", "sessions/bomb.jsonl.zst")
    assert dropped == "main: sessions/bomb.jsonl: dropped; the file is left out until it changes\n"
