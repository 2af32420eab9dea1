"""Commands that send events to the daemon: `recalld hook`, which programs call, and `recalld emit`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from recalld.invocation import CommandGroup, Invocation, examples, pass_invocation

_KINDS = ("session-start", "reconcile", "changed")
_PROGRAMS = {"claude-code": "Claude Code", "codex": "Codex", "openclaw": "OpenClaw"}


@click.group("hook", cls=CommandGroup, epilog=examples("recalld hook install claude-code"))
def hook() -> None:
    """Take hooks of agents' programs, or write the configuration that sends them.

    With the name of a program: take one hook, JSON on standard input, and tell the producers that a session
    began, grew, was compacted or ended. Works while no daemon runs, prints nothing on standard output, and leaves at
    once and always with exit code 0.
    """


# Only their help: `recalld.__main__` takes a hook before click is imported.
for _program, _name in _PROGRAMS.items():
    hook.add_command(
        click.Command(
            _program,
            help=f"Take one hook of {_name}: JSON on standard input, or as the last argument.",
            short_help=f"Take one hook of {_name}.",
            epilog=examples(f"recalld hook {_program} < hook.json"),
            params=[click.Argument(["payload"], nargs=-1, metavar="[JSON]")],
        )
    )


@hook.command("install", epilog=examples("recalld hook install claude-code", "recalld hook install codex --remove"))
@click.argument("program", type=click.Choice(list(_PROGRAMS)))
@click.option("--settings", metavar="FILE", help="The program's settings file, if it is not at its usual place.")
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("--remove", "removing", is_flag=True, help="Take the hooks of recalld out again.")
@pass_invocation
def install(invocation: Invocation, *, program: str, settings: str | None, yes: bool, removing: bool) -> None:
    """Write the hooks into a program's settings, after showing the changed lines.

    claude-code: settings.json in ~/.claude or CLAUDE_CONFIG_DIR. codex: hooks.json in ~/.codex or CODEX_HOME.
    openclaw: only prints the files of a hook and where they belong. A settings file keeps its
    content and indentation; a copy of it stays beside it. A file with comments is left alone.
    With context.injection.enabled, prompts of Claude Code and Codex wait for what memory knows about them.
    """
    from recalld.connect.programs import words_for_program
    from recalld.hooks.installation import change_hooks, waiting_events
    from recalld.settings.load import program_folders

    command = shlex.join(words_for_program(invocation, "hook", program))
    folders = program_folders()
    if program == "openclaw":
        _show_openclaw(folders.openclaw[0] / "hooks" / "recalld", command)
        return
    file = Path(settings).expanduser().absolute() if settings else folders.hook_files[program]
    waiting = waiting_events([agent.context for agent in invocation.settings.agents])
    changed = change_hooks(file, program, command, removing=removing, agreed=yes, waiting=waiting)
    if changed and program == "codex" and not removing:
        click.echo(
            "Codex runs them when you have trusted them: /hooks in Codex. Hooks are on since Codex 0.124, unless"
        )
        click.echo(f"`hooks = false` stands under [features] in {folders.codex / 'config.toml'}.")


def _show_openclaw(folder: Path, command: str) -> None:
    from recalld.hooks.installation import openclaw_hook

    for name, content in openclaw_hook(command).items():
        click.secho(f"# {folder / name}", bold=True)
        click.echo(content)
    click.echo("Write these two files, then run `openclaw hooks enable recalld` and restart its gateway.")


@click.command("emit", epilog=examples("recalld emit reconcile", "recalld emit changed MEMORY.md"))
@click.argument("kind", type=click.Choice(_KINDS))
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@pass_invocation
def emit(invocation: Invocation, *, kind: str, paths: tuple[str, ...]) -> None:
    """Tell the daemon that something happened.

    session-start: a session of the agent begins, its files are compared with the index. reconcile: compare now.
    changed: look at these files at once. Works while no daemon runs: the hint is kept and found at the next start.
    """
    from memory.documents.agent_files import AgentFiles
    from producers.spool import write_event
    from recalld.terminal_text import printable_name, remark
    from recalld.wiring import open_broker
    from schemas.errors import BrokerUnavailable
    from schemas.ports import Event

    if kind == "changed" and not paths:
        raise click.UsageError("changed needs at least one PATH")
    if kind != "changed" and paths:
        raise click.UsageError(f"{kind} takes no PATH")
    absolute = tuple(str(Path(path).absolute()) for path in paths)
    settings, agents = invocation.settings, invocation.agents()
    memories = [AgentFiles.of(settings, agent) for agent in agents] if paths else []
    for path in absolute:
        if not any(files.key_of(path) or files.reason_of(path) or files.spans(path) for files in memories):
            whose = f"agent {agents[0].id}" if len(agents) == 1 else "every agent"
            remark(f"{printable_name(path)} is outside of the memory of {whose}; nothing of it is indexed")
    with open_broker(settings) as broker:
        for agent in agents:
            event = Event(kind=kind, agent=agent.id, paths=absolute)
            try:
                broker.inbox.put(event)
            except BrokerUnavailable:
                write_event(settings.home, event)
