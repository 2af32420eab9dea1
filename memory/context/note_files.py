"""Writing of notes into a workspace: append to a day's note, or create a note under a name that is free.

Two writers meet without a loss: a line is appended by one write under a lock of the file, and a name is taken only if
it is free, by a note that is whole. No link is followed. Nothing that a note holds is ever replaced.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import count, product
from pathlib import Path

from memory.documents.roots import is_note_name
from schemas.errors import Permanent

#: Bytes of a note that are read.
_NOTE_BYTES = 1 << 22

_HEADING = re.compile(r"#{1,6}(?:\s|$)")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_ITEM = re.compile(r"(\s*)(?:[-*+]|[0-9]{1,9}[.)])(?:\s|$)")
_MEMORY = "memory"

#: Hidden name of a note that is being written. The next access removes the draft of a killed process.
_DRAFT = ".recalld-note"


class WriteRefused(Permanent):
    """Write that a turn of the memory may not make: another file than its own, or no regular file."""


def append_note(workspace: Path, path: str, content: str, *, allowed: str) -> str:
    """Append the blocks that a day's note does not hold yet, and return them as text, empty if there are none.

    `path` and `allowed` are relative to the workspace; only the allowed one may be written. Missing folders are made.

    Raises:
        WriteRefused: another path, a link, or not a regular file.
        OSError: the file system refuses.
    """
    if path.removeprefix("./") != allowed:
        raise WriteRefused(f"this turn may write {allowed} only, and only append to it; write the text there")
    return extend_note(workspace, allowed, content, by_blocks=True)


def extend_note(workspace: Path, path: str, content: str, *, by_blocks: bool = False) -> str:
    """Append a text to a note, unless the note ends with it, or only the blocks of it that the note does not hold.

    All of it is on the disk afterwards, or nothing. Result and errors are those of `append_note`.
    """
    try:
        with (
            _folder(workspace) as folder,
            open(path.partition("/")[2], "a+b", buffering=0, opener=_opener(folder)) as file,
        ):
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            data = file.readall()
            note = data.decode("utf-8", "replace")
            missing = "" if note.endswith(content) else content
            addition = new_text(note, content) if by_blocks else missing
            try:
                if addition:
                    _write(file, addition if not note or note.endswith("\n") else f"\n{addition}")
            except OSError:
                file.truncate(len(data))
                raise
            return addition
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ESPIPE}:
            raise WriteRefused(f"{path} is not a regular file") from error
        raise


def create_note(workspace: Path, name: str, content: str) -> str:
    """Create memory/`name`.md, or with a number behind the name if that is taken. Return the path in the workspace.

    The note is whole and on the disk, or not there.

    Raises:
        OSError: the file system refuses.
    """
    with _folder(workspace) as folder:
        with open(_DRAFT, "xb", buffering=0, opener=_opener(folder)) as file:
            _write(file, content)
        for number in count(1):
            file_name = f"{name}.md" if number == 1 else f"{name}-{number}.md"
            with suppress(FileExistsError):
                _add_name(folder, _DRAFT, file_name)
                os.fsync(folder)
                return f"{_MEMORY}/{file_name}"
    raise AssertionError("unreachable")


def notes_with(workspace: Path, line: str) -> dict[str, str]:
    """Return path and text of each note right in memory/ that has a line.

    Raises:
        OSError: the folder cannot be listed.
    """
    notes = {}
    with _folder(workspace) as folder:
        for name in sorted(filter(is_note_name, os.listdir(folder))):  # noqa: PTH208 - a descriptor
            with suppress(OSError), open(name, "rb", opener=_opener(folder)) as file:
                text = file.read(_NOTE_BYTES).decode("utf-8", "replace")
                if line in map(str.rstrip, text.splitlines()):
                    notes[f"{_MEMORY}/{name}"] = text
    return notes


def rename_note(workspace: Path, path: str, name: str) -> str:
    """Give a created note another name, if that is free. Return its path in the workspace."""
    file_name, new_name = path.partition("/")[2], f"{name}.md"
    with suppress(OSError), _folder(workspace) as folder:
        _add_name(folder, file_name, new_name)
        with suppress(FileNotFoundError):
            os.unlink(file_name, dir_fd=folder)
        return f"{_MEMORY}/{new_name}"
    return path


def _opener(folder: int) -> Callable[[str, int], int]:
    """Return an opener of files in a folder that follows no link and waits for no pipe."""
    return lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=folder)


def _write(file: FileIO, text: str) -> None:
    """Write to the disk. Raise OSError if it takes a part only."""
    data = text.encode("utf-8", "replace")
    if file.write(data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file.fileno())


def _add_name(folder: int, name: str, new_name: str) -> None:
    """Give a file a name that is free; where a file cannot have two, in place of its old one."""
    try:
        # A link fails where the name is taken, which a rename would replace.
        os.link(name, new_name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if isinstance(error, FileExistsError) or new_name in os.listdir(folder):
            raise FileExistsError from error
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=folder)


def new_text(note: str, content: str) -> str:
    """Return the blocks of `content` that a note does not hold yet, ready to be appended. No line is dropped alone.

    The note holds a block if a section of the same heading has all its lines, an item of a list below the same
    paragraph. A block without a heading may stand in any section, an item without a paragraph below any. Headings, and
    the paragraph above a list, come again above what is new.
    """
    blocks, open_fence = _blocks(note)
    held_blocks = {(*above, text) for heading, lead, text in blocks for above in product({heading, ""}, {lead, ""})}
    # A fence that was left open would take in all that follows.
    lines = [open_fence] if open_fence else []
    is_apart = not blocks or not blocks[-1][-1] or not note.splitlines()[-1].strip()
    last_heading, last_lead = "", ""
    for heading, lead, text in _blocks(content)[0]:
        if (heading, lead, text) in held_blocks:
            continue
        if heading != last_heading or not text:
            lines.append(heading)
            last_heading, last_lead, is_apart = heading, "", True
        is_item = _ITEM.match(text) is not None
        paragraph = lead if is_item else text
        if paragraph and not (is_item and lead == last_lead):
            lines += [paragraph] if is_apart else ["", paragraph]
        lines += [text] if is_item else []
        last_lead, is_apart = paragraph, not text
    return "\n".join(lines) + "\n" if len(lines) > bool(open_fence) else ""


def _blocks(text: str) -> tuple[list[tuple[str, str, str]], str]:
    """Return the blocks of a note in its order, and the fence that its end leaves open, which its block has closed.

    A block is a paragraph, fence, table or list item: the heading above it, the paragraph above an item's list, and its
    text. A heading by itself is a block without text. White space at the ends of lines and of fences is left out.
    """
    blocks: list[tuple[str, list[str], list[str]]] = []
    heading, fence, gap = "", "", 0
    lead: list[str] = []
    lines: list[str] = []
    item: re.Match[str] | None = None
    for line in map(str.rstrip, text.splitlines()):
        if not line:
            gap += 1
        elif fence:
            is_end = line.strip().startswith(fence) and not line.strip().strip(fence[0])
            lines += [line] if is_end else [*[""] * gap, line]
            fence, gap = ("", 1) if is_end else (fence, 0)
        elif _HEADING.match(line):
            heading, lead, lines = line, [], []
            blocks.append((heading, lead, lines))
        # A paragraph below an item, an item below it, or the next line of a block.
        elif lines and (
            (item and line[: item.end(1) + 1].isspace()) or not (gap or _ITEM.match(line) or _FENCE.match(line))
        ):
            lines += [*[""] * gap, line.removeprefix(item[1] if item else "")]
            gap = 0
        else:
            item, opening = _ITEM.match(line), _FENCE.match(line)
            fence, gap = opening[1] if opening else "", 0
            lines = [line.removeprefix(item[1] if item else "")]
            lead = lead if item else lines
            blocks.append((heading, lead if item else [], lines))
    if fence:
        lines.append(fence)
    return [(heading, "\n".join(lead), "\n".join(lines)) for heading, lead, lines in blocks], fence


@contextmanager
def _folder(workspace: Path) -> Iterator[int]:
    """Yield a descriptor of the workspace's folder memory/, locked where folders can be, made if it is missing."""
    folder = workspace / _MEMORY
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise WriteRefused(f"{folder} is not a folder of the workspace") from error
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        _remove_draft(descriptor)
        yield descriptor
    finally:
        _remove_draft(descriptor)
        os.close(descriptor)


def _remove_draft(folder: int) -> None:
    with suppress(OSError):
        os.unlink(_DRAFT, dir_fd=folder)
