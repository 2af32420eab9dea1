"""Programs that search recalld's memory over MCP, and the entry of `recalld mcp` in each one's settings.

A program takes the entry by its own command, or recalld writes it into the program's JSON settings. Either way it is
read from these settings.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from recalld.discover.openclaw import read_json5
from recalld.discover.translation import table
from recalld.invocation import Invocation
from recalld.settings.load import environment_for_child, find_home
from recalld.settings.replacement import JsonSettings
from recalld.up.supervisor import lasting_command
from schemas.errors import UserError

#: Name of the entry in every program.
SERVER = "recalld"

#: Seconds that a program's own command may take (OpenClaw's takes four), and our server until its tools are listed.
_COMMAND_SECONDS, _ANSWER_SECONDS = 120.0, 60.0

#: Variables that a program hands to its servers: those of the protocol's reference SDKs, and a few more.
_LIKELY_VARIABLES = frozenset(("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"))

Words: TypeAlias = Sequence[str]


def _entry(words: Words) -> dict[str, Any]:
    return {"command": words[0], "args": list(words[1:])}


@dataclass(frozen=True, slots=True)
class Program:
    """One program, and how an entry gets into its settings.

    `servers` is the dotted place of MCP servers there, and `entry` makes the entry of a command. `add` and `remove` are
    arguments of the program's own `command`, which `rewrites` the file without comments and links if it takes JSON.
    `memories` is the program's name in `recalld discover`.
    """

    title: str
    servers: str
    memories: str = ""
    entry: Callable[[Words], dict[str, Any]] = _entry
    command: str = ""
    add: str = ""
    remove: str = ""
    rewrites: bool = False
    next_step: str = "start it anew; /mcp there lists recalld"

    def addition(self, words: Words) -> list[str]:
        """Return the program's own command that adds an entry."""
        return [self.command, *self.add.split(), *([json.dumps(self.entry(words))] if self.rewrites else words)]

    @property
    def removal(self) -> list[str]:
        """The program's own command that removes the entry."""
        return [self.command, *self.remove.split()]


PROGRAMS: Mapping[str, Program] = {
    "claude-code": Program(
        *("Claude Code", "mcpServers", "claude-code"),
        command="claude",
        add="mcp add --scope user recalld --",
        remove="mcp remove --scope user recalld",
    ),
    "codex": Program(
        *("Codex", "mcp_servers", "codex"), command="codex", add="mcp add recalld --", remove="mcp remove recalld"
    ),
    "openclaw": Program(
        *("OpenClaw", "mcp.servers", "openclaw"),
        command="openclaw",
        add="mcp set recalld",
        remove="mcp unset recalld",
        rewrites=True,
        next_step="restart its gateway; `openclaw mcp doctor recalld --probe` tests it from there",
    ),
    "cursor": Program("Cursor", "mcpServers", "cursor", next_step="switch recalld on under Settings, MCP"),
    "gemini": Program(
        *("Gemini CLI", "mcpServers", "gemini-cli"),
        command="gemini",
        add="mcp add -s user recalld",
        remove="mcp remove -s user recalld",
    ),
    "vscode": Program(
        *("VS Code", "servers"),
        entry=lambda words: {"type": "stdio", **_entry(words)},
        next_step="run `MCP: List Servers` and start recalld, which asks for your trust",
    ),
    "windsurf": Program("Windsurf", "mcpServers", next_step="refresh the MCP servers in the Cascade panel"),
    "opencode": Program(
        *("OpenCode", "mcp", "opencode"),
        entry=lambda words: {"type": "local", "command": list(words), "enabled": True},
        next_step="start it anew; `opencode mcp list` shows recalld",
    ),
}


def words_for_program(invocation: Invocation, *words: str) -> list[str]:
    """Return a command of recalld, with the options that this call needs, for a program with another environment."""
    home = invocation.home_path
    options = ["--home", str(home)] if home != find_home(environment={}) else []
    options += [*invocation.config_option(), *(["--agent", invocation.agent] if invocation.agent is not None else [])]
    return [*lasting_command(), *words, *options]


def is_installed(program: Program, file: Path) -> bool:
    """Return True if the program's command is on PATH, or a folder holds its settings."""
    has_folder = file.parent.is_dir() and file.parent != Path.home()
    return has_folder or bool(program.command and shutil.which(program.command))


def registered_entry(program: Program, file: Path) -> Mapping[str, Any] | None:
    """Return the entry named recalld of a program's settings; None without one.

    Raises:
        UserError: the settings cannot be read.
    """
    try:
        text = file.read_text("utf-8-sig") if file.exists() else ""
        tree: Any = tomllib.loads(text) if file.suffix == ".toml" else read_json5(text) if text.strip() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    entry = table(tree, program.servers).get(SERVER)
    return entry if isinstance(entry, Mapping) or entry is None else {"url": str(entry)}


def words_of(entry: Mapping[str, Any] | None) -> list[str]:
    """Return the command that an entry starts; empty for a server that is reached otherwise."""
    command, arguments = (entry or {}).get("command"), (entry or {}).get("args")
    listed = [*(command if isinstance(command, list) else [command]), *(arguments or [])]
    return listed if all(isinstance(word, str) for word in listed) else []


def block_to_paste(program: Program, file: Path, words: Words) -> str:
    """Return the lines that register a command in a settings file, for a user to paste."""
    if file.suffix == ".toml":
        return f"[{program.servers}.{SERVER}]\ncommand = {json.dumps(words[0])}\nargs = {json.dumps(list(words[1:]))}"
    tree: dict[str, Any] = {SERVER: program.entry(words)}
    for name in reversed(program.servers.split(".")):
        tree = {name: tree}
    return json.dumps(tree, indent=2, ensure_ascii=False)


def check_writable(program: Program, file: Path) -> None:
    """Check that an entry can be written, or removed, without loss of anything else in the program's settings.

    Raises:
        UserError: it cannot; the message says why.
    """
    if program.command and shutil.which(program.command) is None:
        raise UserError(f"`{program.command}` is not on PATH")
    if program.rewrites and file.is_symlink():
        raise UserError(f"{file} is a link, which `{program.command}` would replace")
    if program.rewrites or not program.command:
        servers: Any = JsonSettings.read(file).tree
        for name in program.servers.split("."):
            servers = servers.get(name, {})
            if not isinstance(servers, dict):
                raise UserError(f"{file} has no table of servers under {program.servers}")


def write_entry(program: Program, file: Path, words: Words, *, replacing: bool) -> Path | None:
    """Register a command, in place of our entry where `replacing`. Return the copy of a file that this process wrote.

    Raises:
        UserError: it was not registered.
    """
    if program.command:
        if replacing:
            _run(program.removal)
        last_line = _run(program.addition(words))
        if words_of(registered_entry(program, file)) != list(words):
            raise UserError(f"`{shlex.join(program.addition(words))}` did not add it to {file}{last_line}")
        return None
    settings = JsonSettings.read(file)
    servers = dict(settings.tree.get(program.servers, {}))
    servers[SERVER] = {**servers.get(SERVER, {}), **program.entry(words)}
    return settings.replace({**settings.tree, program.servers: servers})


def remove_entry(program: Program, file: Path, *, new_file: bool) -> None:
    """Remove our entry, and the file if it is a `new_file` that holds nothing else. Raise UserError if that fails."""
    if program.command:
        last_line = _run(program.removal)
        if registered_entry(program, file) is not None:
            raise UserError(f"`{shlex.join(program.removal)}` did not take it out of {file}{last_line}")
        return
    settings = JsonSettings.read(file)
    servers = {name: server for name, server in settings.tree[program.servers].items() if name != SERVER}
    tree = {**settings.tree, program.servers: servers}
    if not servers:
        del tree[program.servers]
    settings.replace(None if new_file and not tree else tree)


def _run(command: Words) -> str:
    """Run a program's own command. Return the end of a sentence with its last line. Raise UserError if it failed."""
    try:
        process = _answered([shutil.which(command[0]) or command[0], *command[1:]], seconds=_COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"`{shlex.join(command)}` failed ({getattr(error, 'strerror', None) or 'timeout'})") from None
    last_line = _last_line(process.stderr or process.stdout)
    if process.returncode:
        raise UserError(f"`{shlex.join(command)}` failed{last_line}")
    return last_line


def _answered(
    command: Words, requests: str = "", *, seconds: float, variables: Collection[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in the root folder, which is no project's, with all variables or with these."""
    environment = environment_for_child()
    return subprocess.run(  # noqa: S603 - the user named the program
        list(command),
        input=requests,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=seconds,
        cwd=Path.home().anchor,
        env={name: text for name, text in environment.items() if variables is None or name in variables},
        check=False,
    )


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return f": {lines[-1]}" if lines else ""


def served_tools(words: Words) -> list[str]:
    """Return the names of the tools that a registered command serves, started as a program would start it.

    Raises:
        UserError: it does not answer.
    """
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": SERVER, "version": "1"}}
    requests: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": client},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **request}) + "\n" for request in requests)
    try:
        process = _answered(words, lines, seconds=_ANSWER_SECONDS, variables=_LIKELY_VARIABLES)
        answers = {answer.get("id"): answer for answer in map(json.loads, process.stdout.splitlines())}
        return [str(tool["name"]) for tool in answers[2]["result"]["tools"]]
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = f": {getattr(error, 'strerror', None) or f'no answer in {_ANSWER_SECONDS:.0f} s'}"
    except (ValueError, LookupError, TypeError, AttributeError):
        reason = _last_line(process.stderr)
    raise UserError(f"`{shlex.join(words)}` is registered, but lists no tools{reason}")
