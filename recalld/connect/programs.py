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
from collections.abc import Callable, Mapping, Sequence
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

#: Seconds that a program's own command may take; OpenClaw's takes four.
_COMMAND_SECONDS = 120.0

Words: TypeAlias = Sequence[str]


def _command_and_arguments(words: Words) -> dict[str, Any]:
    return {"command": words[0], "args": list(words[1:])}


@dataclass(frozen=True, slots=True)
class Program:
    """One program, and how an entry gets into its settings.

    `servers` is the dotted place of MCP servers there, `entry` makes the entry of a command, and `next_step` is a
    sentence for the user. `add` and `remove` make arguments of the program's own `command`, which `rewrites` the
    file if comments and links are lost. `memories` is the program's name in `recalld discover`.
    """

    title: str
    servers: str
    next_step: str
    memories: str = ""
    entry: Callable[[Words], dict[str, Any]] = _command_and_arguments
    command: str = ""
    add: Callable[[Words], list[str]] = lambda _: []
    remove: Words = ()
    rewrites: bool = False

    def typed(self, arguments: Words) -> str:
        """Return the program's own command with these arguments, as a user would type it."""
        return f"`{shlex.join([self.command, *arguments])}`"


PROGRAMS: Mapping[str, Program] = {
    "claude-code": Program(
        "Claude Code",
        "mcpServers",
        "start Claude Code anew; /mcp there lists recalld",
        command="claude",
        add=lambda words: ["mcp", "add", "--scope", "user", SERVER, "--", *words],
        remove=("mcp", "remove", "--scope", "user", SERVER),
        memories="claude-code",
    ),
    "codex": Program(
        "Codex",
        "mcp_servers",
        "start Codex anew; /mcp there lists recalld",
        command="codex",
        add=lambda words: ["mcp", "add", SERVER, "--", *words],
        remove=("mcp", "remove", SERVER),
        memories="codex",
    ),
    "openclaw": Program(
        "OpenClaw",
        "mcp.servers",
        "restart OpenClaw's gateway; `openclaw mcp doctor recalld --probe` says whether it answers",
        command="openclaw",
        add=lambda words: ["mcp", "set", SERVER, json.dumps(_command_and_arguments(words))],
        remove=("mcp", "unset", SERVER),
        rewrites=True,
        memories="openclaw",
    ),
    "cursor": Program(
        "Cursor", "mcpServers", "Cursor lists recalld under Settings, MCP; switch it on there", memories="cursor"
    ),
    "gemini": Program(
        "Gemini CLI",
        "mcpServers",
        "start Gemini CLI anew, in a folder that it trusts; /mcp there lists recalld",
        command="gemini",
        add=lambda words: ["mcp", "add", "-s", "user", SERVER, *words],
        remove=("mcp", "remove", "-s", "user", SERVER),
        memories="gemini-cli",
    ),
    "vscode": Program(
        "VS Code",
        "servers",
        "VS Code asks whether you trust recalld when it first starts it; `MCP: List Servers` shows it",
        entry=lambda words: {"type": "stdio", **_command_and_arguments(words)},
    ),
    "windsurf": Program("Windsurf", "mcpServers", "refresh the MCP servers in Windsurf's Cascade panel"),
    "opencode": Program(
        "OpenCode",
        "mcp",
        "start OpenCode anew; `opencode mcp list` shows recalld",
        entry=lambda words: {"type": "local", "command": list(words), "enabled": True},
        memories="opencode",
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
        raise UserError(f"the command `{program.command}` is not on PATH")
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
    if not program.command:
        settings = JsonSettings.read(file)
        servers = dict(settings.tree.get(program.servers, {}))
        servers[SERVER] = {**servers.get(SERVER, {}), **program.entry(words)}
        return settings.replace({**settings.tree, program.servers: servers})
    if replacing:
        _run(program, program.remove)
    last_line = _run(program, program.add(words))
    if words_of(registered_entry(program, file)) != list(words):
        raise UserError(f"{program.typed(program.add(words))} did not add it to {file}{last_line}")
    return None


def remove_entry(program: Program, file: Path, *, new_file: bool) -> None:
    """Remove our entry, and the file if it is a `new_file` that holds nothing else. Raise UserError if that fails."""
    if not program.command:
        settings = JsonSettings.read(file)
        servers = {name: server for name, server in settings.tree[program.servers].items() if name != SERVER}
        tree = {name: value for name, value in settings.tree.items() if name != program.servers or servers}
        tree |= {program.servers: servers} if servers else {}
        settings.replace(None if new_file and not tree else tree)
        return
    last_line = _run(program, program.remove)
    if registered_entry(program, file) is not None:
        raise UserError(f"{program.typed(program.remove)} did not take it out of {file}{last_line}")


def _run(program: Program, arguments: Words) -> str:
    """Run a program's own command. Return the end of a sentence with its last line. Raise UserError if it failed."""
    try:
        process = subprocess.run(  # noqa: S603 - the program that the user named
            [shutil.which(program.command) or program.command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            env=environment_for_child({}),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"{program.typed(arguments)} failed ({getattr(error, 'strerror', None) or 'timeout'})"
        ) from None
    last_line = _last_line(process.stderr or process.stdout)
    if process.returncode:
        raise UserError(f"{program.typed(arguments)} failed{last_line}")
    return last_line


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


# A test of the connection

_HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "recalld connect", "version": "1"},
}
_REQUESTS: Sequence[Mapping[str, Any]] = (
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _HELLO},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
)

#: Seconds for the start of the server and its first answers, on a busy machine.
_ANSWER_SECONDS = 60.0

#: Variables that a program hands to its servers: those of the protocol's reference SDKs, and a few more.
_LIKELY_VARIABLES = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")


def served_tools(words: Words) -> list[str]:
    """Return the names of the tools that a registered command serves, started as a program would start it.

    Raises:
        UserError: it does not answer.
    """
    variables = environment_for_child({})
    try:
        process = subprocess.run(  # noqa: S603 - the command that was registered
            list(words),
            input="".join(f"{json.dumps(request)}\n" for request in _REQUESTS).encode(),
            capture_output=True,
            timeout=_ANSWER_SECONDS,
            cwd=Path.home().anchor,  # no project's folder
            env={name: variables[name] for name in _LIKELY_VARIABLES if name in variables},
            check=False,
        )
        answers = {answer.get("id"): answer for answer in map(json.loads, process.stdout.splitlines())}
        return [str(tool["name"]) for tool in answers[2]["result"]["tools"]]
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = f": {getattr(error, 'strerror', None) or f'no answer in {_ANSWER_SECONDS:.0f} s'}"
    except (ValueError, LookupError, TypeError, AttributeError):
        reason = _last_line(process.stderr)
    raise UserError(f"`{shlex.join(words)}` is registered, but lists no tools{reason}")
