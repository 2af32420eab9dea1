"""`recalld hook`: what agents' programs call, and how they are made to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from recalld.invocation import Invocation, pass_invocation

_PROGRAMS = {"claude-code": "Claude Code", "codex": "Codex", "openclaw": "OpenClaw"}


class _NeverFails(click.Command):
    """A command that leaves with 0 whatever happens: to the programs that call it, other codes mean "stop"."""

    def make_context(self, *arguments: Any, **named: Any) -> click.Context:
        """Parse the arguments; what is wrong with them is one sentence."""
        try:
            return super().make_context(*arguments, **named)
        except click.UsageError as error:
            raise self._given_up(error.format_message()) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run; what goes wrong is one sentence."""
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise
        except Exception as error:  # noqa: BLE001 - the caller must not fail; the reason is told on standard error
            raise self._given_up(str(error) or type(error).__name__) from None

    def _given_up(self, reason: str) -> click.exceptions.Exit:
        click.echo(f"recalld hook {self.name}: {' '.join(reason.split())}", err=True)
        return click.exceptions.Exit(0)


@click.group("hook")
def command() -> None:
    """Take hooks of agents' programs, or write the configuration that sends them.

    With the name of a program: take one hook, JSON on standard input, and tell the producers that a session
    began, grew, was compacted or ended. Works while no daemon runs, prints nothing on standard output, and leaves at
    once and always with exit code 0.
    """


def _add_taking(program: str, name: str) -> None:
    @command.command(
        program,
        cls=_NeverFails,
        help=f"Take one hook of {name}: JSON on standard input, or as the last argument.",
        short_help=f"Take one hook of {name}.",
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("payload", nargs=-1, type=click.UNPROCESSED, metavar="[JSON]")
    @pass_invocation
    def take(invocation: Invocation, *, payload: tuple[str, ...]) -> None:
        from producers.hook_events import event_of
        from producers.hook_payloads import read_hook
        from recalld.hook_delivery import deliver
        from recalld.hook_input import read_input

        given = payload[-1] if payload and payload[-1].lstrip().startswith("{") else None
        hook = read_hook(program, read_input() if given is None else given)
        if hook is not None:
            deliver(invocation.settings, event_of(hook, invocation.settings, agent=invocation.agent))


for _program, _name in _PROGRAMS.items():
    _add_taking(_program, _name)


@command.command("install")
@click.argument("program", type=click.Choice(list(_PROGRAMS)))
@click.option("--settings", metavar="FILE", help="The program's settings file, if it is not at its usual place.")
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("--remove", "removing", is_flag=True, help="Take the hooks of recalld out again.")
@pass_invocation
def install(invocation: Invocation, *, program: str, settings: str | None, yes: bool, removing: bool) -> None:
    """Write the hooks into a program's settings, after showing what is added.

    claude-code: settings.json in ~/.claude or CLAUDE_CONFIG_DIR. codex: hooks.json in ~/.codex or CODEX_HOME.
    openclaw: only prints the files of a hook and where they belong.
    """
    from recalld.configuration import program_folders
    from recalld.hook_command import hook_command

    called = hook_command(invocation, program)
    folders = program_folders()
    if program == "openclaw":
        _show_openclaw(folders.openclaw[0] / "hooks" / "recalld", called)
        return
    from recalld.hook_files import change_hooks

    usual = {"claude-code": folders.claude_code / "settings.json", "codex": folders.codex / "hooks.json"}
    file = Path(settings).expanduser().absolute() if settings else usual[program]
    changed = change_hooks(file, program, called, removing=removing, agreed=yes)
    if changed and program == "codex" and not removing:
        click.echo(f"Codex runs hooks only with `hooks = true` under [features] in {folders.codex / 'config.toml'},")
        click.echo("and asks you to trust them: /hooks in Codex.")


def _show_openclaw(folder: Path, called: str) -> None:
    from recalld.hook_openclaw import openclaw_hook

    for name, content in openclaw_hook(called).items():
        click.secho(f"# {folder / name}", bold=True)
        click.echo(content)
    click.echo("Write these two files, then run `openclaw hooks enable recalld` and restart its gateway.")
