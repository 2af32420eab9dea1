"""Parts of the documentation that are made from the code: every setting, command and condition.

    python -m tests.doc_tables docs/settings.md docs/commands.md docs/troubleshooting.md

Each part stands between two marks of its page; a test compares it with the code.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from memory.status.condition_texts import TEXTS
from recalld.cli import COMMANDS, LazyGroup, root
from schemas.conditions import ConditionCode
from tests.settings_docs import settings_table

#: Options of every command, described once at the top of the page.
_EVERYWHERE = {"--config", "--home", "--agent", "--help"}


def commands() -> str:
    """Return a section for each command: what it does, how it is typed, its arguments and options."""
    assert isinstance(root, LazyGroup)
    with click.Context(root, info_name="recalld") as context:
        return "\n".join(
            section
            for name in COMMANDS
            if (command := root.get_command(context, name)) is not None
            for section in _sections(command, click.Context(command, parent=context, info_name=name))
        )


def conditions() -> str:
    """Return a table of the codes for each of their groups: what a person reads of each, and what to do."""
    head = ["| code | you read | do |", "|---|---|---|"]
    lines: list[str] = []
    for group, name in re.findall(r"^    (?:# (.*)|(\w+) = .*)$", inspect.getsource(ConditionCode), re.MULTILINE):
        if group:
            lines += ["", f"### {group}", "", *head]
        else:
            text = TEXTS[ConditionCode[name]]
            lines += head if not lines else []
            lines.append(f"| `{ConditionCode[name].value}` | {_shown(text.happened)} | {_do(text.remedy)} |")
    return "\n".join(lines).lstrip() + "\n"


#: Name of the marks -> what stands between them.
PARTS = {"settings": settings_table, "commands": commands, "conditions": conditions}


def with_parts(page: str) -> str:
    """Return the page with everything between its marks made anew.

    Raises:
        ValueError: the page has no marks.
    """
    marks = re.compile(r"(<!-- (\w+): begin \(made by `make docs`\) -->\n).*?(<!-- \2: end -->)", re.DOTALL)
    made, count = marks.subn(lambda found: f"{found[1]}{PARTS[found[2]]()}{found[3]}", page)
    if not count:
        raise ValueError("the page has no marks")
    return made


def _sections(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    text = inspect.cleandoc(command.help or "").replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n\n")
    options = [
        (record[0], record[1])
        for param in command.params
        if isinstance(param, click.Option)
        and not _EVERYWHERE.intersection(param.opts)
        and (record := param.get_help_record(context)) is not None
    ]
    lines = [f"### `{usage.replace(' [OPTIONS]', '')}`", "", _cell(text).replace("*", "\\*"), ""]
    if options:
        lines += ["| option | does |", "|---|---|", *(f"| `{_cell(name)}` | {_cell(does)} |" for name, does in options)]
        lines.append("")
    if not isinstance(command, click.Group):
        lines += ["```shell", *examples_of(command), "```", ""]
    yield "\n".join(lines)
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _sections(below, click.Context(below, parent=context, info_name=name))


def examples_of(command: click.Command) -> list[str]:
    """Return the command lines at the end of a command's help."""
    return re.findall(r"^  (recalld .*)$", command.epilog or "", re.MULTILINE)


def _do(remedy: str) -> str:
    return _shown(remedy) if remedy not in ("", "{remedy}") else "as the sentence says; `recalld status` has more"


def _shown(template: str) -> str:
    """Return a template with its values as words in capitals."""
    text = re.sub(r"\{(\w+):waiting\}", "N chunks wait for their vectors", template)
    text = re.sub(r"\{(\w+):count (\w+)\}", r"N \2s", text)
    text = re.sub(r"\{(\w+)[^}]*\}", lambda field: field[1].upper().replace("_", " "), text)
    return _cell(text)


def _cell(text: str) -> str:
    return re.sub(" +", " ", text).replace("|", "\\|").replace("<", "&lt;").strip()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = Path(name)
        file.write_text(with_parts(file.read_text("utf-8")), "utf-8")
