"""Replacement of a settings file, as a whole or not at all, with a copy of its former content."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory.http.whole_files import write_whole
from schemas.errors import UserError


@dataclass(frozen=True, slots=True)
class JsonSettings:
    """Settings of another program, read from a plain JSON object. `before`: the file's bytes; None without a file."""

    file: Path
    before: bytes | None
    tree: dict[str, Any]

    @classmethod
    def read(cls, file: Path) -> JsonSettings:
        """Read a file. A file that is missing or empty holds no settings.

        Raises:
            UserError: writing the file anew would lose something: it has comments, or is not a JSON object at all.
        """
        try:
            before = file.read_bytes() if file.exists() else None
            text = (before or b"").decode("utf-8-sig").strip() or "{}"
            tree = json.loads(text)
            if not isinstance(tree, dict):
                raise ValueError("no object")  # noqa: TRY004, TRY301 - as for every other text that is none
            json.dumps(tree, allow_nan=False)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{file} is not a plain JSON object ({error}); comments would be lost, so nothing was changed"
            ) from None
        except OSError as error:
            raise UserError(f"{file} cannot be read ({error.strerror})") from None
        return cls(file, before, tree)

    def replace(self, tree: dict[str, Any] | None) -> Path | None:
        """Write these settings with the file's own indentation; return the path of the copy of its former content.

        None removes the file. A symbolic link stays a link.

        Raises:
            UserError: nothing was changed: the file cannot be written, or another program has written it meanwhile.
        """
        if tree is None:
            return replace_unchanged(self.file, None, before=self.before)
        indented = re.search(rb"^{\s*?\n([ \t]+)", self.before or b"")
        text = json.dumps(tree, indent=indented[1].decode() if indented else 2, ensure_ascii=False) + "\n"
        # Half a character, which UTF-8 does not have, is written as an escape.
        return replace_unchanged(self.file, text.encode("utf-8", "backslashreplace"), before=self.before)


def replace_unchanged(file: Path, content: bytes | None, *, before: bytes | None) -> Path | None:
    """Replace a file that has its former content still; otherwise raise UserError. See `JsonSettings.replace`."""
    target = Path(os.path.realpath(file))
    try:
        if (target.read_bytes() if target.exists() else None) != before:
            raise UserError(f"{file} was changed by another program meanwhile; nothing was written, try again")
        if content is None:
            target.unlink()
            return None
        return replace_file(target, content, before=before)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}); nothing was changed") from None


def replace_file(file: Path, content: bytes, *, before: bytes | None) -> Path | None:
    """Write a file atomically. Keep `before`, its former content, in a copy beside it; return the copy's path.

    A new file is readable by its owner only, because settings may hold keys. Otherwise file and copy have the
    permissions that the file had.

    Raises:
        OSError: nothing was changed.
    """
    if before is None:
        write_whole(file, content)
        return None
    mode, copy = file.stat().st_mode & 0o777, _free_name(file)
    write_whole(copy, before, mode=mode)
    write_whole(file, content, mode=mode)
    return copy


def kept_in(copy: Path | None) -> str:
    """Return the end of a sentence about a replaced file, with the name of its copy; empty for a new file."""
    return f"; what was there before is in {copy.name} beside it" if copy is not None else ""


def _free_name(file: Path) -> Path:
    name = f"{file.name}.before-recalld-{time.strftime('%Y%m%d-%H%M%S')}"
    copies = (file.with_name(name + suffix) for suffix in ("", *(f"-{number}" for number in range(2, 1000))))
    return next(copy for copy in copies if not os.path.lexists(copy))
