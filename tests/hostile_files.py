"""A workspace and a folder of transcripts as nobody wants them."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    from backports.zstd import compress

#: Names of notes that are files like any other.
ODD_NAMES = (
    "new\nline.md",
    "tab\there.md",
    "bell\x07escape\x1b[31m\x1b]0;owned\x07.md",
    "turned\u202earound.md",
    "a" * 252 + ".md",
    "é" * 126 + ".md",
    "case.md",
    "CASE.md",
    "caf\u00e9.md",
    "cafe\u0301.md",
    "--help.md",
    "-rf.md",
    "'; DROP TABLE files;--.md",
    '"OR NEAR(*) AND.md',
    "*.md",
    "[a-z]?.md",
    "%s%n{0}.md",
    "back\\slash.md",
    " .md",
    "<img src=x onerror=alert(1)>.md",
)

#: Names of transcripts and what they hold; each says "quokka" in its last readable line.
TRANSCRIPTS = {
    "nested.jsonl": b'{"role":"user","content":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "digits.jsonl": b'{"role":"user","content":"x","n":' + b"9" * 10_000 + b"}\n",
    "numbers.jsonl": b'{"role":"user","content":"x","timestamp":NaN}\n{"role":"user","content":"y","x":[-1e999]}\n',
    "surrogate.jsonl": b'{"role":"user","content":"lone \\ud800","name":"\\udfff\\u001b[2J"}\n',
    "zeros.jsonl": b"\0" * 5000 + b"\n",
    "rubbish.jsonl": bytes(range(256)) * 20 + b"\n",
    "bell\x07\nline.jsonl": b'{"type":"evil\\u001b[31m","x":1}\n',
}


def said(text: str) -> bytes:
    """A line of a plain transcript."""
    return json.dumps({"role": "user", "content": text}).encode() + b"\n"


def make_hostile_files(workspace: Path, sessions: Path) -> None:
    """Write all of it. What is no document is named odd*, what can be read only in part is named partly*."""
    memory = workspace / "memory"
    memory.mkdir(parents=True)
    sessions.mkdir(parents=True)
    (workspace / "MEMORY.md").mkdir()
    for number, name in enumerate(ODD_NAMES):
        (memory / name).write_text(f"note{number}x of the zebra\n")
    Path(os.fsdecode(os.fsencode(memory) + b"/odd\xff\x1b[32m.md")).write_text("x")
    (memory / "folder.md").mkdir()
    (memory / "folder.md" / "inside.md").write_text("zebra inside")
    for folder, suffix in ((memory, ".md"), (sessions, ".jsonl")):
        os.mkfifo(folder / f"odd-pipe{suffix}")
        # By its descriptor: the whole path may be longer than an address can be.
        descriptor = os.open(folder, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{descriptor}/odd-socket{suffix}")
        os.close(descriptor)
        (folder / f"odd-link{suffix}").symlink_to("/proc/self/environ")
        (folder / f"odd-loop{suffix}").symlink_to(f"odd-loop{suffix}")
        with (folder / f"sparse{suffix}").open("wb") as file:
            file.write(said("before the hole quokka"))
            file.truncate(100 << 30)
    (memory / "rubbish.md").write_bytes(bytes(range(256)) * 100)
    (memory / "empty.md").touch()
    (memory / "utf16.md").write_text("zebra in sixteen bits", encoding="utf-16")
    (memory / "line.md").write_bytes(b"zebra " * 200_000)
    for name, content in TRANSCRIPTS.items():
        (sessions / name).write_bytes(said("hello okapi") + content + said("after it the quokka"))
    (sessions / "bomb.jsonl.zst").write_bytes(compress(said("before the bomb quokka") + b"\0" * 100_000_000))
    (sessions / "broken.jsonl.zst").write_bytes(compress(said("quokka") * 5000)[:-9])
