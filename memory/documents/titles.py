"""Titles of documents, and the commands that resume conversations in their programs.

A note's title is its first heading. A conversation's title is its project, its day and its first words. The texts come
from the index. Project and program come from the beginning of the transcript's file, which is read once.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from memory.documents.agent_files import AgentFiles
from memory.documents.content import OpenFile
from memory.documents.roots import archived_path, session_id
from memory.documents.session_database import is_of_rows
from memory.redaction import ASKING, redactor_for
from memory.store.reader import IndexedFile
from memory.transcripts.transcript_format import without_spans
from schemas.documents import DocumentKey
from schemas.errors import RecalldError
from schemas.settings import AgentSettings

if TYPE_CHECKING:
    from memory.store.reader import StoreReader

#: Characters of a title's words, and of the words below it.
TITLE_CHARACTERS, WORDS_CHARACTERS = 80, 160

#: Bytes and lines of a transcript's beginning that are read.
_HEAD_BYTES, _HEAD_LINES = 256 * 1024, 40

#: Titles of an agent that are cached, each of about 500 bytes, and the seconds for which a file is not looked at again.
_MOST_TITLES, _SECONDS = 4_096, 60.0

#: Commands that resume a session, by the format of its transcript. OpenClaw has none.
_COMMANDS: Mapping[str, str] = {
    "claude-code": "claude --resume",
    "codex": "codex resume",
    "gemini-cli": "gemini --resume",
    "qwen-code": "qwen --resume",
    "copilot": "copilot --resume",
    "cursor": "cursor-agent --resume",
    "opencode": "opencode --session",
}

#: Programs that look for a session among those of the working directory's project. Gemini CLI does, too, but its
#: transcripts do not name the folder.
_NEED_FOLDER = frozenset(("claude-code", "qwen-code"))

#: Formats whose lines name no project: OpenClaw's folder is its own workspace.
_WITHOUT_FOLDER = frozenset(("openclaw", "cursor", "gemini-cli", "plain"))

#: Beginning of the ids of OpenCode's sessions, and form of an id that a command may hold.
_OPENCODE_ID = "ses_"
_ID = re.compile(r"[\w][\w.-]{0,127}", re.ASCII)

#: Beginning of a message in a chunk (`memory.transcripts.packing.label`).
_MESSAGE = re.compile(r"^(?:\[(\d{4}-\d\d-\d\d) \d\d:\d\d\] )?([^\n:]{1,40}): ", re.MULTILINE)
_NEXT = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d\] ", re.MULTILINE)

#: Parts of Markdown that a title leaves out: marks, comments, and the addresses of links.
_MARKS = str.maketrans("", "", "*`")
_COMMENT, _COMMENT_END = re.compile("<!--"), "-->"
_LINK = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\n]*\)")
_FENCES = ("```", "~~~")


@dataclass(frozen=True, slots=True)
class Title:
    """Title of a document. `words` are a note's first words below it, and `resume` a conversation's command."""

    text: str
    words: str | None = None
    resume: str | None = None


@dataclass(frozen=True, slots=True)
class SessionHead:
    """Facts at the beginning of a transcript: the format, the working directory, and the session's own id."""

    format: str | None = None
    folder: str | None = None
    session: str | None = None


class Titles:
    """Titles of one agent's documents. Thread-safe."""

    def __init__(self, agent: AgentSettings, files: AgentFiles) -> None:
        self._agent, self._files = agent, files
        #: Revision of the index (`StoreReader.change_token`), monotonic time of expiry, and title.
        self._titles: dict[tuple[DocumentKey, bool], tuple[object, float, Title]] = {}

    def of(
        self,
        reader: StoreReader,
        keys: Collection[DocumentKey],
        *,
        redact: Callable[[str, str], str] | None,
        look: bool,
    ) -> dict[DocumentKey, Title]:
        """Return the titles of those documents that the index has.

        Args:
            reader: of the agent's index.
            keys: the documents.
            redact: masks the secrets (source, text) in texts of an index with other rules; None if that has the rules.
            look: read the beginnings of transcripts. Without them a title names the agent, and nothing resumes it.
        """
        token, now = reader.change_token(), time.monotonic()
        cached = {key: self._titles.get((key, look)) for key in keys}
        titles = {key: entry[2] for key, entry in cached.items() if entry and entry[0] == token and now < entry[1]}
        for indexed, beginning in reader.beginnings(lacking) if (lacking := set(keys) - titles.keys()) else ():
            key = indexed.key
            text = redact(key.source, beginning) if redact is not None else beginning
            if key.is_transcript:
                head = self._head(indexed) if look else None
                titles[key] = session_title(key.path, text, head, agent=self._agent.id)
            else:
                titles[key] = note_title(key.path, text)
            if len(self._titles) >= _MOST_TITLES:
                self._titles.clear()
            self._titles[key, look] = token, now + _SECONDS, titles[key]
        return titles

    def _head(self, indexed: IndexedFile) -> SessionHead | None:
        """Return the beginning of a transcript; None if the session is not there any more."""
        key = indexed.key
        if is_of_rows(indexed.stat):
            return SessionHead("opencode" if session_id(key.path).startswith(_OPENCODE_ID) else "openclaw")
        try:
            redact = redactor_for(self._agent, key.source, budget=ASKING)
            with self._files.opened(key, settled=False) as opened:
                if not isinstance(opened, OpenFile):
                    return None
                return head_of(_first_lines(opened), opened.format, redact)
        except (RecalldError, OSError):
            return None


def note_title(path: str, text: str) -> Title:
    """Return the title of a note with this beginning: its first heading, else its first words, else its file name."""
    heading, front_title, lines, fence = "", "", list[str](), ""
    rows = text.splitlines()
    if rows and rows[0].rstrip() == "---" and (end := next(_ends(rows), 0)):
        front_title = next((row[len("title:") :].strip(" \"'") for row in rows[1:end] if row.startswith("title:")), "")
        rows = rows[end + 1 :]
    for row in rows:
        line = row.strip()
        if line.startswith(_FENCES):
            fence = "" if fence and line.startswith(fence) else fence or line[:3]
        elif not heading and not fence and line.startswith("#") and line.lstrip("#")[:1] in (" ", "\t"):
            heading, lines = plain(line.strip("# \t")), []
        elif line and line.strip("-=*_"):
            lines.append(line.lstrip("#>-+* \t"))
    words = plain(" ".join(lines[:20]))
    title = heading or plain(front_title)
    if title:
        return Title(shortened(title, TITLE_CHARACTERS), shortened(words, WORDS_CHARACTERS) or None)
    return Title(shortened(words, TITLE_CHARACTERS) or path.rpartition("/")[2])


def session_title(path: str, text: str, head: SessionHead | None, *, agent: str) -> Title:
    """Return the title of a conversation whose first chunk is this text."""
    first = next((match for match in _MESSAGE.finditer(text) if match[2] == "User"), None) or _MESSAGE.search(text)
    start, day = (first.end(), first[1]) if first is not None else (0, None)
    following = _NEXT.search(text, start)
    words = shortened(plain(text[start : following.start() if following else None]), TITLE_CHARACTERS)
    project = os.path.basename(head.folder) if head is not None and head.folder else ""  # noqa: PTH119 - a foreign path
    speakers = {match[2] for match in _MESSAGE.finditer(text)}
    resume = None
    if head is not None and (head.format == "claude-code" or not {"Agent", "Subagent"} & speakers):
        resume = resume_command(path, head)
    return Title(" · ".join(filter(None, [project or agent, day, words])), resume=resume)


def resume_command(path: str, head: SessionHead) -> str | None:
    """Return the command that resumes a session in its program; None where the program has none."""
    command = _COMMANDS.get(head.format or "")
    session = head.session if head.format == "gemini-cli" else session_id(path)
    if command is None or session is None or archived_path(path) is not None or not _ID.fullmatch(session):
        return None
    folder = head.folder if head.format in _NEED_FOLDER else None
    return f"cd {shlex.quote(folder)} && {command} {session}" if folder else f"{command} {session}"


def head_of(lines: Iterator[bytes], format: str | None, redact: Callable[[str], str]) -> SessionHead:  # noqa: A002
    """Return the facts in the first lines of a transcript. A folder whose name holds a secret is left out."""
    # A search without transcripts among its results need not load the formats.
    from memory.transcripts.interpreter import parse, recognised_format

    folder = session = None
    for line in lines:
        entry = parse(line)
        if entry is None:
            continue
        recognised = recognised_format(entry) if format is None else None
        format = format or (recognised.name if recognised is not None else None)  # noqa: A001
        folder, session = folder or _text(entry, "cwd"), session or _text(entry, "sessionId")
        if format is not None and (folder or format in _WITHOUT_FOLDER):
            break
    usable = folder and folder.startswith("/") and folder.isprintable() and redact(folder) == folder
    return SessionHead(format, folder if usable and format not in _WITHOUT_FOLDER else None, session)


def _text(entry: dict[str, Any], name: str) -> str | None:
    """Return a fact of a line, from the places where the programs keep it."""
    payload, data = entry.get("payload"), entry.get("data")
    context = data.get("context") if isinstance(data, dict) else None
    holders = (holder for holder in (entry, payload, context) if isinstance(holder, dict))
    return next((text for holder in holders if isinstance(text := holder.get(name), str) and text), None)


def _first_lines(opened: OpenFile) -> Iterator[bytes]:
    read = partial(os.pread, opened.descriptor)
    if opened.compressed:
        from memory.transcripts.lines import decompressed

        block = next(decompressed(read, opened.stat.size), b"")
    else:
        block = read(min(_HEAD_BYTES, opened.stat.size), 0)
    # The last line may be cut.
    yield from block[:_HEAD_BYTES].split(b"\n")[:-1][:_HEAD_LINES]


def _ends(rows: list[str]) -> Iterator[int]:
    return (number for number, row in enumerate(rows) if number and row.rstrip() in ("---", "..."))


def plain(text: str) -> str:
    """Return a text on one line, without marks of Markdown."""
    text = without_spans(text, _COMMENT, _COMMENT_END) if "<!--" in text else text
    return " ".join(_LINK.sub(r"\1", text).translate(_MARKS).split())


def shortened(text: str, most: int) -> str:
    """Return the beginning of a text of at most `most` characters, cut between words where there are any."""
    if len(text) <= most:
        return text
    space = text.rfind(" ", most // 2, most)
    return text[: space if space > 0 else most - 1].rstrip(" ,;:.-") + "…"
