"""What a listing of files has to say to a person: one sentence each, and never a million of them."""

from __future__ import annotations

import errno
import os

#: Sentences of one kind that are told; the rest is counted.
_TOLD = 20

#: Documents that one listing of notes, or of transcripts, finds at most. In every process that compares files and index
#: each takes about 350 bytes of memory if it is a transcript, new or changed, and 180 if the index knows it.
MAX_DOCUMENTS = 2_000_000

#: Characters of a path that are told at most, half of them from either end.
_SHOWN_CHARS = 400


def printable(path: str) -> str:
    """A path as it can be written down and shown, whatever it holds: control characters are escaped."""
    try:
        text = os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        # Half of a surrogate pair, which JSON can hold and no file system gives.
        text = path.encode("utf-8", "backslashreplace").decode()
    if not text.isprintable():
        text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    half = _SHOWN_CHARS // 2
    return text if len(text) <= _SHOWN_CHARS else f"{text[:half]}...{text[-half:]}"


class ScanProblems:
    """Collects sentences. Bounded: of each kind the first ones are kept, and how many came after them."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, None]] = {}
        self._more: dict[str, int] = {}

    def add(self, sentence: str, *, kind: str = "") -> None:
        """One more; `kind` is what the rest is called: "and 5 more `kind`"."""
        told = self._told.setdefault(kind, {})
        if sentence in told:
            return
        if kind and len(told) >= _TOLD:
            self._more[kind] = self._more.get(kind, 0) + 1
        else:
            told[sentence] = None

    def sentences(self) -> tuple[str, ...]:
        """Each once."""
        found = [sentence for told in self._told.values() for sentence in told]
        return (*found, *(f"and {count:,} more {kind}" for kind, count in self._more.items()))

    def not_utf8(self, path: str) -> None:
        """A name that cannot be kept as text."""
        self.add(
            f"{printable(path)} is left out: its name is not UTF-8; rename it",
            kind="files or folders whose names are not UTF-8",
        )

    def link(self, path: str) -> None:
        """A symbolic link in the place of a document or of a folder of them."""
        self.add(
            f"{printable(path)} is a symbolic link, which is not followed: put the file or folder itself there, "
            "or name its target in extra_paths",
            kind="symbolic links, which are not followed",
        )

    def no_file(self, path: str) -> None:
        """A pipe, socket or device that is named like a document."""
        self.add(
            f"{printable(path)} is left out: it is a pipe, a socket or a device and no regular file; remove it",
            kind="pipes, sockets and devices",
        )

    def too_long(self, path: str) -> None:
        """A path that the system does not take."""
        self.add(
            f"{printable(path)} is left out: its path is longer than the system allows; move it further up",
            kind="files or folders whose paths are too long",
        )

    def too_many(self, folder: str, most: int) -> None:
        """More documents than are listed."""
        self.add(
            f"there are more than {most:,} documents in and before {printable(folder)}: the rest is not looked at; "
            "give parts of them to agents of their own"
        )

    def unlistable(self, folder: str, error: OSError) -> None:
        """A folder that the system does not let us list."""
        if error.errno == errno.ENAMETOOLONG:
            self.too_long(folder)
        else:
            self.add(
                f"{printable(folder)} cannot be listed: {error.strerror or error}; check its permissions",
                kind="folders that cannot be listed",
            )
