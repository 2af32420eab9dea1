"""What was found, as lines for a terminal and as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from recalld.discovering.counting import Counted
from recalld.discovering.finding import Discovery, Found
from recalld.status_view import size

#: More of one program than this are counted, not listed, on a terminal.
LISTED = 40


def discovery_lines(discovery: Discovery) -> Iterator[str]:
    """The list, and what to do with it. A remark that holds for several is said once."""
    width = max((len(one.name) for one in discovery.found), default=0)
    said: set[str] = set()
    shown: dict[str, int] = {}
    for one in discovery.found:
        shown[one.program] = shown.get(one.program, 0) + 1
        if shown[one.program] > LISTED:
            continue
        yield f"{click.style(f'{one.name:<{width}}', bold=True)}  {_printable(one.title)}"
        indent = " " * (width + 2)
        yield f"{indent}{_counts(one)}"
        if str(one.workspace) not in one.title:
            yield f"{indent}workspace {_printable(str(one.workspace))}"
        for remark in one.remarks:
            if remark not in said:
                said.add(remark)
                yield indent + click.style(f"note: {_printable(remark)}", dim=True)
    for program, number in shown.items():
        if number > LISTED:
            yield f"and {number - LISTED} more of {program} (--json lists all of them)"
    for problem in discovery.problems:
        yield click.style(_printable(problem), fg="yellow")


def discovery_json(discovery: Discovery) -> dict[str, Any]:
    """Everything, for programs."""
    return {"found": [_body(one) for one in discovery.found], "problems": list(discovery.problems)}


def _body(one: Found) -> dict[str, Any]:
    return {
        "name": one.name,
        "program": one.program,
        "title": one.title,
        "workspace": str(one.workspace),
        "notes": _counted(one.notes),
        "sessions": list(one.sessions),
        "transcripts": _counted(one.transcripts),
        "settings": {**_plain(one.shared), **_plain(one.settings)},
        "remarks": list(one.remarks),
    }


def _counted(counted: Counted) -> dict[str, Any]:
    return {
        "files": counted.files,
        "bytes": counted.bytes,
        "newest": counted.newest,
        "complete": counted.complete,
    }


def _plain(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) if isinstance(value, Mapping) else value for name, value in tree.items()}


def _counts(one: Found) -> str:
    parts = [_count(one.notes, "note")]
    if one.sessions:
        parts.append(_count(one.transcripts, "transcript"))
    if one.newest:
        parts.append(f"the newest of {time.strftime('%Y-%m-%d', time.localtime(one.newest))}")
    return ", ".join(parts)


def _count(counted: Counted, noun: str) -> str:
    number = f"{'' if counted.complete else 'at least '}{counted.files:,} {noun}{'' if counted.files == 1 else 's'}"
    return f"{number} ({size(counted.bytes)})" if counted.files else number


def _printable(text: str) -> str:
    """Names of files come from anywhere; none of them may speak to the terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
