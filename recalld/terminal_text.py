"""Text for a terminal, without the characters that control it."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import click

from recalld.invocation import to_type

T = TypeVar("T")

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


#: Seconds between two states of a line of progress: on a terminal, and elsewhere. Seconds from which on a rate counts.
_DRAW_SECONDS, _LINE_SECONDS, _RATE_SECONDS = 0.2, 10.0, 2.0


class ProgressLine:
    """Line of progress: drawn anew on a terminal, elsewhere printed every ten seconds, or `at_once` for the first time.

    `say` prints a text, with `nl=False` without an end of line.
    """

    def __init__(
        self,
        say: Callable[..., None],
        *,
        terminal: bool,
        at_once: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._terminal = terminal
        self._clock = clock
        self._began_at = clock()
        self._printed_at = float("-inf") if at_once else self._began_at
        self._drawn_text = ""
        #: Unit of the rate, and the time and the amount at its beginning.
        self._rate_start: tuple[str, float, float] = ("", 0.0, 0.0)
        self._printed_keys: set[str] = set()

    @property
    def due(self) -> bool:
        """Return True if it is time for the next state."""
        return self._clock() - self._printed_at >= (_DRAW_SECONDS if self._terminal else _LINE_SECONDS)

    def draw(
        self,
        text: str,
        *,
        share: float | None = None,
        amount: tuple[float, float, str] | None = None,
        last: bool = False,
    ) -> None:
        """Show a text, on a terminal beside a bar of a share between 0 and 1; the `last` one stays.

        `amount` is done, total and unit: a terminal gets the rate and the time that is left after two seconds.
        """
        pace = ""
        if amount is not None:
            share, pace = amount[0] / max(amount[1], 1), self._pace(*amount)
        if self._terminal and share is not None:
            filled = min(30, int(30 * share))
            pace = pace or f"{self._clock() - self._began_at:.0f} s"
            text = f"[{'#' * filled}{'.' * (30 - filled)}] {text}  {pace}"
        if text != self._drawn_text:
            # Blanks in place of \x1b[K, which click removes with the colours.
            blanks = " " * (len(self._drawn_text) - len(text))
            self._say(f"\r{text}{blanks}" if self._terminal else text, nl=last or not self._terminal)
        self._printed_at, self._drawn_text = self._clock(), text

    def _pace(self, done: float, total: float, unit: str) -> str:
        """Return rate and time left; "" before they can be known."""
        now = self._clock()
        if self._rate_start[0] != unit:
            self._rate_start = (unit, now, done)
        _, began_at, before = self._rate_start
        if now - began_at < _RATE_SECONDS or done <= before:
            return ""
        return pace(done - before, left=total - done, unit=unit, seconds=now - began_at)

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


def pace(done: float, *, left: float, unit: str, seconds: float) -> str:
    """Return the rate of work that did `done` units in so many seconds, and the time for the units that are left."""
    from memory.status.condition_texts import duration

    rate = done / max(seconds, 0.1)
    return f"{rate:,.{0 if rate >= 10 else 1}f} {unit}/s, about {duration(max(1.0, left / rate))} left"


def reading(documents: Collection[T], *, unit: str = "documents", sizes: Mapping[T, int] | None = None) -> Iterator[T]:
    """Yield documents that are read one after the other, with a line of progress on standard error.

    The `sizes`, bytes, tell the rate and the time left.
    """
    line = ProgressLine(partial(click.echo, err=True), terminal=sys.stderr.isatty())
    count, done = len(documents), 0.0
    total = sum(sizes.values()) / 1e6 if sizes is not None else count
    for number, document in enumerate(documents):
        if line.due:
            amount = (done, total, unit if sizes is None else "MB")
            line.draw(f"reading {number:,} of {count:,} {unit}", amount=amount)
        yield document
        done += sizes[document] / 1e6 if sizes is not None else 1
    line.end()


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code < 0xDD00 else match[0].encode("unicode_escape").decode()
