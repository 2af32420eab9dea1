"""Codex's sessions: one tree by date for all folders it worked in, and one folder of archived ones."""

from __future__ import annotations

from pathlib import Path

from recalld.discovering.counting import Deadline, count_notes, count_transcripts
from recalld.discovering.finding import Discovery, Found


def find_codex(folder: Path, *, deadline: Deadline) -> Discovery:
    """One memory for all that was said to Codex."""
    sessions = tuple(str(folder / name) for name in ("sessions", "archived_sessions") if (folder / name).is_dir())
    transcripts = count_transcripts(sessions, deadline=deadline)
    extra = [str(folder / "memories")] if (folder / "memories").is_dir() else []
    notes = count_notes(folder, extra, deadline=deadline)
    if not transcripts.files and not notes.files and transcripts.complete:
        return Discovery()
    found = Found(
        name="codex",
        program="codex",
        title=f"Codex in {folder}",
        workspace=folder,
        sessions=sessions,
        notes=notes,
        transcripts=transcripts,
        settings={"extra_paths": extra} if extra and notes.files else {},
    )
    return Discovery((found,))
