"""Files of a workspace that a session begins with, cut to a budget."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

from memory.chunking.chunker import estimate_tokens
from memory.documents.content import DocumentGone, opened_below
from schemas.context import BootstrapFile, SessionKindOfPrompt
from schemas.errors import RecalldError
from schemas.settings import Bootstrap

#: Files in the order in which a prompt gets them.
BOOTSTRAP_FILES = (
    *("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md", "HEARTBEAT.md", "BOOTSTRAP.md", "MEMORY.md"),
)

#: Files for sessions of the owner alone.
PRIVATE_FILES = frozenset({"USER.md", "MEMORY.md"})

#: Files for the agent's own jobs. A chat gets all.
_FILES_OF: dict[SessionKindOfPrompt, frozenset[str]] = {
    "subagent": frozenset({"AGENTS.md", "TOOLS.md"}),
    "cron": frozenset({"AGENTS.md", "TOOLS.md", "SOUL.md", "IDENTITY.md", "USER.md"}),
}

#: Bytes of a file that are read at most, and characters below which no further file is begun.
MAX_FILE_BYTES = 2_000_000
LEAST_CHARACTERS = 64

#: Share of a cut file's budget for its beginning; the rest is for its end.
_HEAD_SHARE = 7 / 9


def bootstrap_files(
    workspace: Path,
    settings: Bootstrap,
    *,
    redact: Callable[[str], str],
    kind: SessionKindOfPrompt = "chat",
    private: bool,
    today: date | None = None,
) -> list[BootstrapFile]:
    """Return the workspace's files for a session's prompt; of an absent file only the name.

    `private`: only the owner listens. `today`: the user's date on a bare reset, when the notes of this day and of the
    day before are shown, too.
    """
    allowed_names = _FILES_OF.get(kind, frozenset(BOOTSTRAP_FILES)) - (frozenset() if private else PRIVATE_FILES)
    names = [name for name in BOOTSTRAP_FILES if name in allowed_names]
    if today is not None and private and kind == "chat":
        names += [f"memory/{day.isoformat()}.md" for day in (today, today - timedelta(days=1))]
    files, left = [], settings.total_max_chars
    for name in names:
        text, problem = _read(workspace, name, redact)
        budget = min(left, settings.user_max_chars if name == "USER.md" else settings.max_chars)
        excerpt = cut(text, name, budget=budget) if left >= LEAST_CHARACTERS else ""
        left -= len(excerpt)
        files.append(
            BootstrapFile(
                path=name,
                characters=len(text),
                shown=len(excerpt),
                tokens=round(estimate_tokens(excerpt)),
                truncated=len(excerpt) != len(text),
                problem=problem,
                text=excerpt,
            )
        )
    return files


def cut(text: str, path: str, *, budget: int) -> str:
    """Return a text of at most `budget` characters: its beginning, a notice that names the file, and its end."""
    if len(text) <= budget:
        return text
    notice = f"\n\n[... {path} is cut here: {len(text)} characters in all; read the file for the rest ...]\n\n"
    if len(notice) >= budget:
        return text[:budget]
    room = budget - len(notice)
    head = round(room * _HEAD_SHARE)
    return text[:head] + notice + text[len(text) - (room - head) :]


def _read(workspace: Path, path: str, redact: Callable[[str], str]) -> tuple[str, str | None]:
    """Return a file's text without secrets, or the reason why there is none."""
    try:
        with (
            opened_below(str(workspace), path.split("/"), name=path) as descriptor,
            os.fdopen(descriptor, "rb", closefd=False) as file,
        ):
            data = file.read(MAX_FILE_BYTES)
    except DocumentGone:
        return "", "missing"
    except RecalldError as error:
        return "", str(error)
    return redact(data.decode("utf-8", "replace").removeprefix("\ufeff").strip()), None
