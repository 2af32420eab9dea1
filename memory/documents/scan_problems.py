"""Conditions of files that a listing finds, and never a million of them."""

from __future__ import annotations

import errno
import os
from collections import Counter

from schemas.conditions import Condition, ConditionCode, Param

#: Conditions with one code that are kept; the rest is counted.
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
    """Conditions of files, as a listing finds them. Of each code the first ones are kept, the rest is counted."""

    def __init__(self) -> None:
        self._found: dict[ConditionCode, dict[str, Condition]] = {}
        self._more: Counter[ConditionCode] = Counter()

    def add(self, code: ConditionCode, path: str, **params: Param) -> None:
        """Add a condition of a file or folder, once."""
        found = self._found.setdefault(code, {})
        shown = printable(path)
        if shown in found:
            return
        if len(found) >= _TOLD:
            self._more[code] += 1
        else:
            found[shown] = Condition(code, shown, params=params)

    def conditions(self) -> tuple[Condition, ...]:
        """Return each once, and how many more there are."""
        found = [one for kind in self._found.values() for one in kind.values()]
        more = (
            Condition(ConditionCode.MORE_FILES, code.value, params={"count": count, "kind": code.value})
            for code, count in self._more.items()
        )
        return (*found, *more)

    def unlistable(self, folder: str, error: OSError) -> None:
        """Add a folder that the system does not list."""
        if error.errno == errno.ENAMETOOLONG:
            self.add(ConditionCode.PATH_TOO_LONG, folder)
        else:
            self.add(ConditionCode.FOLDER_UNLISTABLE, folder, error=error.strerror or str(error))
