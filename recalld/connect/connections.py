"""Connections of programs to this memory: the plans that a user agrees to, and the record of their pieces.

`<home>/connections.json` lists every piece that `recalld connect` put into a program's settings or standing
instructions. A piece is recorded before it is written and forgotten after it is removed, so `--remove` takes out these
and nothing else.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from memory.http.whole_files import write_whole
from recalld.connect.programs import (
    PROGRAMS,
    SERVER,
    block_to_paste,
    check_writable,
    registered_entry,
    remove_entry,
    words_of,
    write_entry,
)
from recalld.discover.memories import DiscoveredMemory, agent_tables, check_settings, settings_file
from recalld.hooks.installation import hooks_at, hooks_changed, our_commands
from recalld.settings.keys import dotted
from recalld.settings.replacement import kept_in, replace_unchanged
from schemas.errors import UserError

#: File of a home with the pieces in other programs' settings.
RECORD = "connections.json"

#: Agents that a plan names; it counts the others.
_NAMED_AGENTS = 8

#: Program -> name of its file of standing instructions, in its own folder or in a project's.
RULES_FILES = {"claude-code": "CLAUDE.md", "codex": "AGENTS.md"}

_BEGIN, _END = "<!-- recalld: rules begin -->", "<!-- recalld: rules end -->"
_MARK = re.compile(rb"<!-- recalld: rules (begin|end) -->")

_RULES = f"""{_BEGIN}
## Memory

* Before you answer about earlier work, decisions, people or dates, search with `memory_search`; `memory_get` reads more
  lines around a result.
* When you learn a durable fact, decision or preference, append it to `memory/YYYY-MM-DD.md` of the workspace (today's
  date), or type `COMMAND "..."` where you have a shell. Never write a secret there.
{_END}"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Piece in a settings file of a program: a "server" or "hooks", by the `words` of its command, or "rules".

    `new_file`: the file was made for it.
    """

    program: str
    kind: str
    file: str
    words: tuple[str, ...]
    new_file: bool

    @property
    def place(self) -> tuple[str, str, str]:
        """Program, kind and file, which hold one piece at most."""
        return self.program, self.kind, self.file


@dataclass(frozen=True, slots=True)
class Change:
    """One change to one file. `line` is shown before the user agrees; `apply` returns the sentence after it."""

    line: str
    apply: Callable[[], str]
    adds: Piece | None = None
    removes: Piece | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes in their order, and sentences about everything that stays as it is.

    `released` are recorded pieces that are gone, or that another hand has changed.
    """

    changes: list[Change] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    released: list[Piece] = field(default_factory=list)

    def carry_out(self, home: Path) -> Iterator[str]:
        """Make and record the changes, and yield a sentence on each. Raise UserError at the first that fails."""
        pieces = {piece.place: piece for piece in recorded_pieces(home) if piece not in self.released}
        for change in self.changes:
            if change.adds is not None:
                pieces[change.adds.place] = change.adds
                _record(home, pieces.values())
            yield change.apply()
            if change.removes is not None:
                del pieces[change.removes.place]
                _record(home, pieces.values())
        if self.released:
            _record(home, pieces.values())


def recorded_pieces(home: Path) -> list[Piece]:
    """Return all pieces in programs' settings, the first one first. Raise UserError for a damaged record."""
    file = home / RECORD
    try:
        pieces = json.loads(file.read_bytes())["pieces"] if file.exists() else []
        return [Piece(**{**piece, "words": tuple(piece["words"])}) for piece in pieces]
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(f"{file} cannot be read; move it away, and take recalld out of programs by hand") from None


def _record(home: Path, pieces: Collection[Piece]) -> None:
    file, content = home / RECORD, json.dumps({"pieces": list(map(asdict, pieces))}, indent=2)
    try:
        if pieces:
            write_whole(file, content.encode() + b"\n")
        else:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror})") from None


def _ours(recorded: Collection[Piece], *place: str) -> Piece | None:
    return next((piece for piece in recorded if piece.place == place), None)


def plan_server(name: str, file: Path, words: Sequence[str], recorded: Collection[Piece], plan: Plan) -> None:
    """Plan the registration of a command with a program. An entry by another hand stays."""
    program, ours = PROGRAMS[name], _ours(recorded, name, "server", str(file))
    try:
        entry = registered_entry(program, file)
        present = words_of(entry)
        if entry is not None and present == list(words):
            return
        if entry is not None and (ours is None or present != list(ours.words)):
            target = shlex.join(present) or entry.get("url") or entry.get("httpUrl") or "something else"
            plan.remarks.append(
                f"{program.title}: {file} has a server {SERVER} that connect did not add ({target}), and it stays; "
                "take it out there and connect again"
            )
            return
        check_writable(program, file)
    except UserError as error:
        block = block_to_paste(program, file, words)
        plan.remarks.append(f"{program.title} was left as it is: {error}. By hand, add this to {file}:\n{block}")
        return

    def apply() -> str:
        copy = write_entry(program, file, words, replacing=entry is not None)
        return f"{program.title}: server {SERVER} is in {file}{kept_in(copy)}"

    way = f"by `{shlex.join(program.addition(words))}`" if program.command else f"starts `{shlex.join(words)}`"
    new_file = ours.new_file if ours else not (program.command or file.exists())
    piece = Piece(name, "server", str(file), tuple(words), new_file)
    plan.changes.append(Change(f"+ {file}: server {SERVER}, {way}", apply, adds=piece))


def plan_hooks(
    name: str, file: Path, command: str, waiting: Sequence[str], recorded: Collection[Piece], plan: Plan
) -> None:
    """Plan hooks that call `command`. Hooks of recalld that connect did not install stay."""
    ours = _ours(recorded, name, "hooks", str(file))
    try:
        settings, changed = hooks_changed(file, name, command, waiting=waiting)
        foreign_commands = set(our_commands(settings.tree, name)).difference(ours.words if ours else ())
    except (UserError, LookupError, TypeError, AttributeError) as error:
        plan.remarks.append(f"{PROGRAMS[name].title} gets no hooks: {error}")
        return
    if foreign_commands - {command}:
        plan.remarks.append(f"{file} has hooks of another recalld, which stay")
    elif not foreign_commands and changed != settings.tree:
        new_file = ours.new_file if ours else settings.before is None
        plan.changes.append(
            Change(
                f"+ {file}: {hooks_at(name, command, waiting)}",
                lambda: f"{PROGRAMS[name].title}: hooks are in {file}{kept_in(settings.replace(changed))}",
                adds=Piece(name, "hooks", str(file), (command,), new_file),
            )
        )


def plan_agents(memories: Sequence[DiscoveredMemory], file: Path, plan: Plan) -> None:
    """Plan agents for these memories, behind the agents of a settings file. Raise UserError if it cannot be read."""
    before = _content(file)
    blocks, text = "".join(agent_tables(memories)), settings_file(memories)
    if before is not None:
        text = before.decode()  # it was loaded already
        end = "\r\n" if "\r\n" in text else "\n"
        text += ("" if text.endswith("\n") or not text else end) + blocks.replace("\n", end)
        if shared := sorted({key for memory in memories for key in dotted(memory.shared)}):
            plan.remarks.append(f"OpenClaw's settings for all agents are not taken over: {', '.join(shared)}")
    try:
        check_settings(text)
    except UserError as error:
        plan.remarks.append(f"{file} was left as it is ({error}). Add these agents by hand:\n{blocks}")
        return
    names = [memory.name for memory in memories]
    more = f" and {len(names) - _NAMED_AGENTS} more" if len(names) > _NAMED_AGENTS else ""
    agents = f"agent{'s' if len(names) > 1 else ''} {', '.join(names[:_NAMED_AGENTS])}{more}"

    def apply() -> str:
        return f"recalld: {agents} added to {file}{kept_in(replace_unchanged(file, text.encode(), before=before))}"

    plan.changes.append(Change(f"+ {file}: {agents}", apply))


def _content(file: Path) -> bytes | None:
    """Return the bytes of a file, None without one. Raise UserError if it cannot be read."""
    try:
        return file.read_bytes() if file.exists() else None
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror})") from None


def plan_rules(piece: Piece, plan: Plan, words: Sequence[str] = (), *, renews: bool = False) -> None:
    """Plan a block of rules that name a command; without one, take it out. A block to renew stays out if it is gone."""
    file, title = Path(piece.file), PROGRAMS[piece.program].title
    rules = _RULES.replace("COMMAND", shlex.join(words)) if words else ""

    def apply() -> str:
        before, copy = _content(file), None
        after = _with_block(file, before or b"", rules)
        if after != (before or b""):  # a file with two names is written once
            copy = replace_unchanged(file, None if piece.new_file and not after else after, before=before)
        return f"{title}: rules are {f'in {file}{kept_in(copy)}' if rules else f'taken out of {file}'}"

    content = _content(file) or b""
    after = _with_block(file, content, rules)
    if not _MARK.search(content) and (renews or not rules):
        _release(piece, "block of rules", is_there=False, plan=plan)
    elif rules and after != content:
        plan.changes.append(Change(f"+ {file}: rules for {title}\n{rules}", apply, adds=piece))
    elif not rules:
        plan.changes.append(Change(f"- {file}: rules for {title}", apply, removes=piece))


def _with_block(file: Path, content: bytes, block: str) -> bytes:
    """Return a file's content with a block of rules, in place of its former one or at its end; "" takes it out.

    A line end before the block and one behind it are part of it. Every other byte stays.

    Raises:
        UserError: the file has a part of a block, or several blocks.
    """
    marks = list(_MARK.finditer(content))
    if [mark[1] for mark in marks] not in ([], [b"begin", b"end"]):
        problem = f"{file} has half a block of recalld's rules, or several"
        raise UserError(f"{problem}; leave one there, from {_BEGIN} to {_END}, or none, and try again")
    is_crlf = content.startswith(b"\r\n", marks[0].end()) if marks else b"\r\n" in content
    line_end = b"\r\n" if is_crlf else b"\n"
    text = block.encode().replace(b"\n", line_end)
    if not marks:
        return content + (line_end if content else b"") + text + line_end if block else content
    above, below = content[: marks[0].start()], content[marks[1].end() :]
    if not block:
        above, below = above.removesuffix(line_end), below.removeprefix(line_end)
        # Two lines of the user never become one.
        text = line_end if above and below and not above.endswith((b"\n", b"\r")) else b""
    return above + text + below


def plan_removal(home: Path, programs: Collection[str] | None = None) -> Plan:
    """Plan to take out every recorded piece, or those of these programs. Later changes by other hands stay.

    Raises:
        UserError: the record cannot be read.
    """
    plan = Plan()
    for piece in recorded_pieces(home):
        if programs is None or piece.program in programs:
            try:
                removals = {"server": _plan_server_removal, "hooks": _plan_hooks_removal, "rules": plan_rules}
                removals[piece.kind](piece, plan)
            except (UserError, LookupError, TypeError, AttributeError) as error:
                plan.remarks.append(f"the {piece.kind} of recalld in {piece.file} could not be taken out: {error}")
    return plan


def _plan_server_removal(piece: Piece, plan: Plan) -> None:
    program, file = PROGRAMS[piece.program], Path(piece.file)
    entry = registered_entry(program, file)
    if words_of(entry) != list(piece.words):
        _release(piece, f"server {SERVER}", is_there=entry is not None, plan=plan)
        return
    check_writable(program, file)

    def apply() -> str:
        remove_entry(program, file, new_file=piece.new_file)
        return f"{program.title}: server {SERVER} is taken out of {file}"

    way = f", by `{shlex.join(program.removal)}`" if program.command else ""
    plan.changes.append(Change(f"- {file}: server {SERVER}{way}", apply, removes=piece))


def _plan_hooks_removal(piece: Piece, plan: Plan) -> None:
    file = Path(piece.file)
    settings, changed = hooks_changed(file, piece.program, None)
    commands = set(our_commands(settings.tree, piece.program))
    if commands != set(piece.words):
        _release(piece, "hooks of recalld", is_there=bool(commands), plan=plan)
        return

    def apply() -> str:
        settings.replace(None if piece.new_file and not changed else changed)
        return f"{PROGRAMS[piece.program].title}: hooks are taken out of {file}"

    plan.changes.append(Change(f"- {file}: hooks of recalld", apply, removes=piece))


def _release(piece: Piece, subject: str, *, is_there: bool, plan: Plan) -> None:
    end = "was changed since, and stays" if is_there else "is gone already"
    plan.remarks.append(f"{piece.file}: {subject} {end}")
    plan.released.append(piece)
