"""Files of a workspace that a session begins with, cut to a budget, and what is left of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Literal

from memory.chunking.chunker import estimate_tokens
from memory.documents.content import DocumentGone, opened_below
from schemas.errors import RecalldError
from schemas.sections import Bootstrap

#: Files in the order in which a prompt gets them.
BOOTSTRAP_FILES = (
    *("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md", "HEARTBEAT.md", "BOOTSTRAP.md", "MEMORY.md"),
)

#: Files for sessions of the owner alone.
PRIVATE_FILES = frozenset({"USER.md", "MEMORY.md"})

BootstrapKind = Literal["chat", "subagent", "cron"]

#: Files for the agent's own jobs. A chat gets all.
_FILES_OF: dict[BootstrapKind, frozenset[str]] = {
    "subagent": frozenset({"AGENTS.md", "TOOLS.md"}),
    "cron": frozenset({"AGENTS.md", "TOOLS.md", "SOUL.md", "IDENTITY.md", "USER.md"}),
}

#: Bytes of a file that are read at most, and characters below which no further file is begun.
MAX_FILE_BYTES = 2_000_000
LEAST_CHARACTERS = 64

#: Share of a cut file's budget for its beginning; the rest is for its end.
_HEAD_SHARE = 7 / 9


@dataclass(frozen=True, slots=True)
class ContextFile:
    """A file in a prompt: its text as shown, and the characters that it has. `problem`: why it is not there."""

    path: str
    text: str
    characters: int
    problem: str | None = None

    @property
    def tokens(self) -> int:
        """Return the estimated tokens of the shown text."""
        return round(estimate_tokens(self.text))

    @property
    def is_truncated(self) -> bool:
        """Return True if the prompt does not show all of the file."""
        return self.problem is None and len(self.text) != self.characters


def bootstrap_files(
    workspace: Path,
    settings: Bootstrap,
    *,
    redact: Callable[[str], str],
    kind: BootstrapKind = "chat",
    private: bool,
    today: date | None = None,
) -> list[ContextFile]:
    """Return the workspace's files for a session's prompt; of absent ones no more than the name.

    `private`: only the owner listens. `today`: the user's date on a bare reset, when the notes of this day and of the
    day before are shown, too.
    """
    names = [
        name
        for name in BOOTSTRAP_FILES
        if name in _FILES_OF.get(kind, BOOTSTRAP_FILES) and (private or name not in PRIVATE_FILES)
    ]
    if today is not None and private and kind == "chat":
        names += [f"memory/{day.isoformat()}.md" for day in (today, today - timedelta(days=1))]
    return list(_within(settings, [_read(workspace, name, redact) for name in names]))


def cut(text: str, path: str, *, budget: int) -> str:
    """Return a text of at most `budget` characters: its beginning, a mark that names the file, and its end."""
    if len(text) <= budget:
        return text
    mark = f"\n\n[... {path} is cut here: {len(text)} characters in all; read the file for the rest ...]\n\n"
    if len(mark) >= budget:
        return text[:budget]
    room = budget - len(mark)
    head = round(room * _HEAD_SHARE)
    return text[:head] + mark + text[len(text) - (room - head) :]


def _within(settings: Bootstrap, files: Sequence[ContextFile]) -> Iterator[ContextFile]:
    left = settings.total_max_chars
    for file in files:
        budget = min(left, settings.user_max_chars if file.path == "USER.md" else settings.max_chars)
        if file.problem is None and left < LEAST_CHARACTERS:
            yield ContextFile(file.path, "", file.characters)
            continue
        shown = cut(file.text, file.path, budget=budget)
        left -= len(shown)
        yield ContextFile(file.path, shown, file.characters, file.problem)


def _read(workspace: Path, path: str, redact: Callable[[str], str]) -> ContextFile:
    try:
        with opened_below(str(workspace), path.split("/"), name=path) as descriptor:
            data = b""
            while len(data) < MAX_FILE_BYTES and (piece := os.read(descriptor, MAX_FILE_BYTES - len(data))):
                data += piece
    except DocumentGone:
        return ContextFile(path, "", 0, "missing")
    except RecalldError as error:
        return ContextFile(path, "", 0, str(error))
    text = redact(data.decode("utf-8", "replace").removeprefix("\ufeff").strip())
    return ContextFile(path, text, len(text))
