"""Text for a terminal, without the characters that control it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from recalld.invocation import to_type

#: Control characters except tab and line end, characters that change the direction of a line, and halves of surrogate
#: pairs, which no output takes.
_COMMANDS = "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff"
_IN_TEXT = re.compile(f"[{_COMMANDS}]")
_IN_NAME = re.compile(f"[{_COMMANDS}\\t\\n]")

#: The forms that `printable_name` gives to characters. Of names that are kept, none holds halves of surrogate pairs.
_ESCAPE = re.compile(r"\\(?:[tnr]|x0[0-8bcef]|x1[0-9a-f]|x7f|x[89][0-9a-f]|u202[a-e]|u206[6-9])")


def printable(text: str) -> str:
    """Replace signs that would move the cursor, set a title or ring: any program may have written a note."""
    return _IN_TEXT.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def printable_name(name: str) -> str:
    """Return a name in one line. Control characters (\\n, \\x1b) and bytes that are not UTF-8 are escaped."""
    return name if name.isprintable() else _IN_NAME.sub(_escaped, name)


def typed_name(printed: str) -> str:
    """Return the name that `printable_name` prints as `printed`; any other text stays as it is."""
    return _ESCAPE.sub(lambda match: match[0].encode().decode("unicode_escape"), printed)


def printable_answer(answer: Any) -> Any:
    """Return a JSON value with each of its texts in one line."""
    if isinstance(answer, str):
        return printable_name(answer)
    if isinstance(answer, Mapping):
        return {name: printable_answer(value) for name, value in answer.items()}
    if isinstance(answer, (list, tuple)):
        return [printable_answer(value) for value in answer]
    return answer


def fields(value: object, *names: str) -> dict[str, Any]:
    """Return attributes as fields of an answer: `vectors_ready` as vectorsReady."""
    words = {name: name.split("_") for name in names}
    return {first + "".join(map(str.title, rest)): getattr(value, name) for name, (first, *rest) in words.items()}


def printable_json(value: Any, *, indent: int | None = None) -> str:
    """Return JSON whose control characters are escaped; it reads back as the same value."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _IN_TEXT.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_answer(answer: Mapping[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    """Print an answer as one JSON object, or as lines for people. A generator of lines does not run for JSON."""
    for line in [printable_json(answer, indent=2)] if as_json else lines:
        click.echo(line)


def remark(text: str) -> None:
    """Print a remark to standard error: a pipe gets the answer alone."""
    click.secho(f"recalld: {to_type(text)}", err=True, dim=True)


#: Seconds between two states of a line of progress: on a terminal, and elsewhere.
_DRAW_SECONDS, _LINE_SECONDS = 0.2, 10.0


class ProgressLine:
    """Line of progress: drawn anew on a terminal, elsewhere printed every ten seconds, or `at_once` for the first time.

    `say` prints a text, with `nl=False` without an end of line.
    """

    def __init__(self, say: Callable[..., None], *, terminal: bool, at_once: bool = False) -> None:
        self._say = say
        self._terminal = terminal
        self._began_at = time.monotonic()
        self._printed_at = float("-inf") if at_once else self._began_at
        self._drawn_text = ""
        self._printed_keys: set[str] = set()

    @property
    def due(self) -> bool:
        """Return True if it is time for the next state."""
        return time.monotonic() - self._printed_at >= (_DRAW_SECONDS if self._terminal else _LINE_SECONDS)

    def draw(self, text: str, *, share: float | None = None, last: bool = False) -> None:
        """Show a text, on a terminal beside a bar of a share between 0 and 1; the `last` one stays."""
        if self._terminal and share is not None:
            filled = int(30 * share)
            text = f"[{'#' * filled}{'.' * (30 - filled)}] {text}  {time.monotonic() - self._began_at:.0f} s"
        if text != self._drawn_text:
            # Blanks in place of \x1b[K, which click removes with the colours.
            blanks = " " * (len(self._drawn_text) - len(text))
            self._say(f"\r{text}{blanks}" if self._terminal else text, nl=last or not self._terminal)
        self._printed_at, self._drawn_text = time.monotonic(), text

    def once(self, text: str, *, key: str | None = None) -> None:
        """Print a text above the line, unless it, or a text of the same `key`, was printed before."""
        if (key or text) not in self._printed_keys:
            self._printed_keys.add(key or text)
            self.end()
            self._say(text)

    def end(self) -> None:
        """Clear the line for other output."""
        if self._terminal and self._drawn_text:
            self._say(f"\r{' ' * len(self._drawn_text)}\r", nl=False)
            self._drawn_text = ""


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code < 0xDD00 else match[0].encode("unicode_escape").decode()
