"""Memories that recalld could keep: the number, size and age of their files, and a `recalld.toml` for those picked."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memory.documents.agent_files import AgentFiles
from memory.documents.session_database import is_of_rows
from memory.status.condition_texts import what_happened
from recalld.settings.keys import PATH_KEYS, agent_keys, dotted, top_level_keys
from recalld.settings.load import load
from recalld.settings.workspaces import unique_id
from schemas.conditions import ConditionCode
from schemas.documents import FileStat
from schemas.settings import AgentSettings, Settings

#: Beginning of a settings file that recalld wrote.
TITLE_BEGINNING = "# Settings of recalld, written by `recalld "

_TITLE = f"""\
{TITLE_BEGINNING}discover` or `recalld connect`. `recalld config show` says what holds;
# docs/settings.md lists every key with its default.
"""


@dataclass(frozen=True, slots=True)
class FileCount:
    """Number of files, their bytes, and the Unix time of the newest. Unless `complete`, there may be more.

    `in_database`: the sessions among them that are rows of a database, which have no bytes of their own.
    """

    files: int = 0
    bytes: int = 0
    newest: float | None = None
    complete: bool = True
    in_database: int = 0

    @classmethod
    def of(cls, files: Collection[FileStat]) -> FileCount:
        """Return the figures of these files."""
        newest = max((file.mtime_ns / 1e9 for file in files), default=None)
        sizes = [file.size for file in files if not is_of_rows(file)]
        return cls(len(files), sum(sizes), newest, in_database=len(files) - len(sizes))


@dataclass(frozen=True, slots=True)
class DiscoveredMemory:
    """One memory that recalld could keep.

    `name` becomes the agent's id; a user picks the memory by it. `settings` are the agent's own and `shared` those of
    all agents, both as nested tables in recalld's names. `remarks` are sentences for the user.
    """

    name: str
    program: str
    title: str
    workspace: Path
    sessions: tuple[str, ...] = ()
    notes: FileCount = FileCount()
    transcripts: FileCount = FileCount()
    settings: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def newest(self) -> float:
        """Unix time of the newest file, 0 when there is none."""
        return max(self.notes.newest or 0.0, self.transcripts.newest or 0.0)

    @property
    def is_empty(self) -> bool:
        """Return True if all files were counted and there is none."""
        return not any(counted.files or not counted.complete for counted in (self.notes, self.transcripts))

    def counted(self, until: float) -> DiscoveredMemory:
        """Return the memory with its documents counted, if that ends before that moment of the monotonic clock."""

        def check(_: str) -> None:
            if time.monotonic() >= until:
                raise _Late

        settings = {"id": "found", "workspace": self.workspace, "sessions": self.sessions, **self.settings}
        try:
            scan = AgentFiles(AgentSettings.model_validate(settings)).scan(entering=check)
        except _Late:
            return replace(self, notes=FileCount(complete=False), transcripts=FileCount(complete=False))
        notes = [stat for key, stat in scan.documents.items() if not key.is_transcript]
        transcripts = [stat for key, stat in scan.documents.items() if key.is_transcript]
        unread = (problem for problem in scan.problems if problem.code is ConditionCode.SESSIONS_UNREADABLE)
        remarks = (*self.remarks, *map(what_happened, unread))
        return replace(self, notes=FileCount.of(notes), transcripts=FileCount.of(transcripts), remarks=remarks)


class _Late(Exception):
    """Raised when the time for counting is over."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """All memories of a machine, and sentences about places that could not be searched."""

    memories: tuple[DiscoveredMemory, ...] = ()
    problems: tuple[str, ...] = ()


def with_unique_names(
    memories: Iterable[DiscoveredMemory], *, reserved: Iterable[str] = ()
) -> tuple[DiscoveredMemory, ...]:
    """Return the memories, each with a free name that is an agent's id. Of equal names the first stays as it is."""
    reserved_names = {name.lower() for name in reserved}
    by_name: dict[str, DiscoveredMemory] = {}
    for memory in memories:
        name = unique_id(memory.name, by_name.keys() | reserved_names, default=memory.program)
        by_name[name.lower()] = replace(memory, name=name)
    return tuple(by_name.values())


def absolute_path(value: object) -> Path | None:
    """Return an absolute path that another program wrote, `~` expanded; None for everything else."""
    text = os.path.expanduser(value.strip()) if isinstance(value, str) else ""  # noqa: PTH111 - Path's own raises
    return Path(os.path.normpath(text)) if text.startswith("/") and "\0" not in text else None


# Settings for the memories that a user picked


def settings_file(picked: Iterable[DiscoveredMemory]) -> str:
    """Return the text of a `recalld.toml`. Where memories differ in a setting for all agents, the first one counts."""
    agents = list(picked)
    shared: dict[str, Any] = {}
    for memory in agents:
        shared = {**dotted(memory.shared), **shared}
    return "".join([_TITLE, "\n" if shared else "", *_lines(shared), *agent_tables(agents)])


def check_settings(text: str) -> Settings:
    """Return the settings of a file with this text. Raise UserError if they are not valid."""
    with TemporaryDirectory(prefix="recalld-") as folder:
        draft = Path(folder) / "recalld.toml"
        draft.write_text(text, encoding="utf-8")
        return load(config=str(draft), home=folder, environment={}).settings


def agent_tables(memories: Iterable[DiscoveredMemory]) -> Iterator[str]:
    """Yield the lines of each agent, an empty one first. A remark on several memories is written once."""
    written_remarks: set[str] = set()
    for memory in memories:
        text = [f"\n# {_comment(memory.title)}\n"]
        text += [f"# Note: {_comment(remark)}\n" for remark in memory.remarks if remark not in written_remarks]
        written_remarks.update(memory.remarks)
        sessions = {"sessions": memory.sessions} if memory.sessions else {}
        settings = {"id": memory.name, "workspace": str(memory.workspace), **sessions, **dotted(memory.settings)}
        yield "".join([*text, "[[agents]]\n", *_lines(settings)])


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    order = [*agent_keys(), *top_level_keys()]
    for key, value in sorted(values.items(), key=lambda pair: order.index(pair[0])):
        yield f"{key} = {_value(from_user_folder(value) if key in (*PATH_KEYS, 'extra_paths') else value)}\n"


def from_user_folder(value: Any) -> Any:
    """Return a path, or each path in a list or table, as `~/...` if it is below the user's folder."""
    if isinstance(value, list | tuple):
        return [from_user_folder(path) for path in value]
    if isinstance(value, Mapping):
        return {name: from_user_folder(path) for name, path in value.items()}
    folder = os.path.expanduser("~/")  # noqa: PTH111 - Path's own raises
    return f"~/{value.removeprefix(folder)}" if isinstance(value, str) and value.startswith(folder) else value


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_value(name)} = {_value(element)}" for name, element in value.items()) + " }"
    # JSON's texts, numbers and booleans are those of TOML, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    """Return one line, without the control characters that a comment may not have."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
