"""Frame of the command line: commands, global options, exit codes, and errors as one sentence."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recalld.invocation import CommandGroup, Invocation, examples, global_options
from recalld.terminal_text import printable_name
from schemas.errors import RecalldError, UserError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: Variable with which a shell asks for completions (`recalld completion`).
COMPLETION_VARIABLE = "_RECALLD_COMPLETE"

#: Heading of `recalld --help` -> name of a command -> its line; in the order in which a newcomer meets them.
_GROUPS = {
    "Find": {
        "search": "Search an agent's memory.",
        "get": "Print lines of a memory file.",
        "open": "Open the page in the browser, with the memory of all agents.",
        "context": "Show the memory that a session's prompt gets, and its cost.",
        "remember": "Write a text into today's note, and wait until it is found.",
    },
    "Run": {
        "up": "Run everything here: broker, watching, indexing and search.",
        "stop": "Stop the running `recalld up`, in order.",
        "service": "Start recalld at login or boot, and after failures.",
        "logs": "Print the logs of all processes, by time.",
        "index": "Bring the index up to date, and stop.",
        "backfill": "Index old transcripts, after their price.",
        "status": "Compare files, index and queue, and list the conditions.",
    },
    "Connect": {
        "connect": "Connect Claude Code, Codex and other programs to this memory.",
        "discover": "List agents, notes and transcripts here; write settings.",
        "mcp": "Serve the memory tools over MCP, on standard input and output.",
        "hook": "Take hooks of Claude Code, Codex or OpenClaw; install them.",
    },
    "Care": {
        "doctor": "Examine machine, home and indexes; repair them with --fix.",
        "where": "Show where settings, home, logs and indexes are, with sizes.",
        "config": "Show the settings and where each of them came from.",
        "dead": "List, show, retry or drop documents that failed.",
        "jobs": "List the queue and batch jobs; cancel a batch job.",
        "rebuild": "Build the index anew while the present one answers.",
        "export": "Write an agent's memory to one file.",
        "import": "Read such a file into an agent's memory.",
        "backup": "Copy the home to a folder while it runs.",
        "restore": "Make a home of such a folder.",
        "model": "List local models; fetch one.",
        "uninstall": "Remove what recalld made; notes and transcripts stay.",
    },
    "Fleet": {
        "ingest": "Run only the door by which machines send documents.",
        "migrate": "Make or update the tables of a fleet's PostgreSQL.",
        "tenant": "Administer tenants: teams that share no memory.",
        "token": "Make, list and revoke access tokens.",
    },
    "Plumbing": {
        "watch": "Run only the producers: watch files, queue changed documents.",
        "work": "Run only the workers: index queued documents.",
        "serve": "Run only the query service.",
        "emit": "Tell the daemon that something happened.",
        "completion": "Print the script that completes commands in your shell.",
        "help": "Show the help of a command.",
    },
}

#: Name -> line of `recalld --help`.
COMMANDS = {name: line for commands in _GROUPS.values() for name, line in commands.items()}

#: Commands that are not in a module of their own name. A command is an attribute with its name in its module of
#: `recalld.commands`, which is imported when the command is used.
_MODULES = {
    **dict.fromkeys(("up", "watch", "work", "serve", "ingest", "mcp"), "processes"),
    **dict.fromkeys(("rebuild", "backfill", "remember"), "index"),
    **dict.fromkeys(("emit", "hook"), "events"),
    **dict.fromkeys(("open", "stop", "service", "logs", "where", "uninstall"), "home"),
    **dict.fromkeys(("export", "import", "backup", "restore"), "home"),
    "doctor": "status",
    "get": "search",
    "completion": "help",
    **dict.fromkeys(("migrate", "tenant", "token"), "fleet"),
}

EXIT_CODES = """\
Exit codes: 0 done; 1 failed; 2 wrong usage or settings; 3 nothing found; 4 indexed by keyword only as no \
vectors can be had, status is not ok, doctor found a problem; \
130 interrupted (`up`, `watch`, `work`, `serve`, `ingest`: 0); 130 or 143 at once by a second signal; 141 the \
reader of the output went away."""


class LazyGroup(CommandGroup):
    """Group whose commands are imported when they are called: a fast start is part of a fast search."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names, in the order in which a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command and let it take the global options, too."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"recalld.commands.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name)
        _accept_global_options(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands by group, without importing them."""
        for heading, commands in _GROUPS.items():
            with formatter.section(heading):
                # One column for all groups.
                formatter.write_dl([(name.ljust(max(map(len, COMMANDS))), line) for name, line in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands without importing them, and options."""
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=line) for name, line in COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)


def _accept_global_options(command: click.Command) -> None:
    options = {option for param in command.params for option in param.opts}
    command.params += [option for option in global_options() if not options.intersection(option.opts)]
    if EXIT_CODES not in (command.epilog or ""):
        command.epilog = "\n\n".join(filter(None, (command.epilog, EXIT_CODES)))
    if isinstance(command, click.Group):
        for below in command.commands.values():
            _accept_global_options(below)


root = LazyGroup(
    "recalld",
    help="Fresh, crash-safe, hybrid-searchable memory for agents, from Markdown notes and transcripts.",
    epilog="\n\n".join(
        (
            examples(
                "recalld up --workspace ~/notes", 'recalld search "which port does staging use"', "recalld help up"
            ),
            EXIT_CODES,
        )
    ),
    params=global_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(package_name="recalld", message="%(prog)s %(version)s", help="Print the version.")(root)


def run(arguments: Sequence[str], *, in_colour: bool = True, completion: str | None = None) -> int:
    """Run one command and return its exit code. An error is one sentence with its remedy.

    `in_colour`: terminals get colours. `completion` is the request of a shell that completes a command line.
    """
    invocation = Invocation()
    if completion:
        from click.shell_completion import shell_complete

        return shell_complete(root, {"obj": invocation}, "recalld", COMPLETION_VARIABLE, completion)
    try:
        _require_current_folder()
        # Not root.main(): it handles interrupts and closed pipes differently.
        color = None if in_colour else False  # None leaves it to the kind of output
        with root.make_context("recalld", list(arguments) or ["--help"], obj=invocation, color=color) as context:
            outcome = root.invoke(context)
        if sys.stdout is not None:  # the caller closed it
            sys.stdout.flush()
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "recalld"
        return _say(f"{_one_line(error.format_message())} (see {where} --help)", exit_code=2)
    except click.ClickException as error:
        return _say(_one_line(error.format_message()), exit_code=error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The buffer has no reader; without this the interpreter complains at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except RecalldError as error:
        return _say(invocation.to_type(str(error)), exit_code=error.exit_code if isinstance(error, UserError) else 1)
    except Exception as error:  # noqa: BLE001 - the traceback is kept where a person can find it
        return _say(_crashed(error, invocation), exit_code=1)
    return outcome if isinstance(outcome, int) else 0


def _require_current_folder() -> None:
    """Raise UserError if the folder that relative paths start from was deleted."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UserError("the current folder no longer exists; change to another one", exit_code=2) from error


def _say(message: str, *, exit_code: int) -> int:
    for line in message.splitlines() or [""]:
        click.echo(f"recalld: {printable_name(line)}", err=True)
    return exit_code


def _one_line(message: str) -> str:
    return " ".join(message.split()).rstrip(".")


def _crashed(error: Exception, invocation: Invocation) -> str:
    """Keep the traceback, readable by its owner only: locals are not in it, but paths and settings may be."""
    import traceback

    from memory.http.whole_files import write_whole
    from memory.redaction import redact

    first = redact(next(iter(str(error).splitlines()), ""))
    kind = f"unexpected {type(error).__name__}" + (f": {first}" if first else "")
    text = redact("".join(traceback.format_exception(error)))
    file = Path(invocation.home_path) / "run" / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        write_whole(file, text.encode("utf-8", "backslashreplace"))
    except OSError as reason:
        return f"{kind}; the traceback could not be kept in {file} ({reason.strerror}):\n{text.rstrip()}"
    return f"{kind}; this is a defect, the traceback is in {file}"
