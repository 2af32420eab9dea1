"""Somebody swaps a document for a link to a secret, and back, all the time: a read gets the document, or nothing."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from schemas.search import GetRequest
from schemas.settings import Settings
from tests.written_index import searching, with_agent

SECRET = "the launch code is 0000"
HARMLESS = "a note about nothing"

#: Reads, and how many of each outcome there must be for the race to have taken place.
READS, OF_EACH = 1000, 10

#: Another process, so that it swaps in the very middle of what this one does.
_SWAPPING = """
import os, sys
place, real, link, aside = sys.argv[1:]
print("begun", flush=True)
while True:
    os.rename(place, aside); os.rename(link, place)
    os.rename(place, link); os.rename(aside, place)
"""


@contextmanager
def swapped(place: Path, link: Path) -> Iterator[None]:
    """Exchange the file at `place` with the link at `link` again and again until the end of the block."""
    arguments = [str(path) for path in (place, place, link, place.with_name("aside"))]
    with subprocess.Popen([sys.executable, "-c", _SWAPPING, *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("what", ["document", "folder", "transcript"])
def test_a_link_that_is_swapped_in_at_any_moment_shows_no_secret(settings: Settings, workspace: Path, what: str):
    sessions, outside = workspace.parent / "sessions", workspace.parent / "outside"
    for folder in (sessions, outside, workspace / "memory" / "sub"):
        folder.mkdir()
    line = '{{"type": "message", "message": {{"role": "user", "content": "{}"}}}}\n'
    for folder, text in ((workspace / "memory" / "sub", HARMLESS), (outside, SECRET)):
        (folder / "note.md").write_text(text, "utf-8")
    (sessions / "a.jsonl").write_text(line.format(HARMLESS), "utf-8")
    (outside / "a.jsonl").write_text(line.format(SECRET), "utf-8")
    place, target = {
        "document": (workspace / "memory" / "sub" / "note.md", outside / "note.md"),
        "folder": (workspace / "memory" / "sub", outside),
        "transcript": (sessions / "a.jsonl", outside / "a.jsonl"),
    }[what]
    link = workspace.parent / "link"
    link.symlink_to(target)
    path = str(sessions / "a.jsonl") if what == "transcript" else "memory/sub/note.md"
    outcomes: Counter[bool] = Counter()
    with searching(with_agent(settings, sessions=[str(sessions)])) as manager, swapped(place, link):
        while outcomes.total() < READS or min(outcomes[True], outcomes[False]) < OF_EACH:
            answer = manager.read_file(GetRequest(path=path))
            assert SECRET not in answer.model_dump_json()
            outcomes[HARMLESS in answer.text] += 1
            assert outcomes.total() < 100 * READS, outcomes
