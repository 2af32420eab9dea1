"""Commands about the command line: `recalld help` and `recalld completion`."""

from __future__ import annotations

import click

from recalld.invocation import examples


@click.command("help", epilog=examples("recalld help search", "recalld help dead retry"))
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help(ctx: click.Context, *, words: tuple[str, ...]) -> None:  # noqa: A001 - commands are found by their names
    """Show the help of a command, or of recalld: `recalld help search` is `recalld search --help`."""
    context = ctx.find_root()
    for word in words:
        if not isinstance(context.command, click.Group):
            context.fail(f"{context.command_path} has no commands of its own, {word!r} say")
        _, command, _ = context.command.resolve_command(context, [word])
        assert command is not None  # noqa: S101 - else resolve_command raises
        context = click.Context(command, info_name=word, parent=context)
    click.echo(context.get_help())


#: Shell -> file that it reads, and the line for it.
_SHELLS = {
    "bash": ("~/.bashrc", 'eval "$(recalld completion bash)"'),
    "zsh": ("~/.zshrc", 'eval "$(recalld completion zsh)"'),
    "fish": ("~/.config/fish/config.fish", "recalld completion fish | source"),
}


@click.command("completion", epilog=examples(*(f"recalld completion {shell}" for shell in _SHELLS)))
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def completion(*, shell: str) -> None:
    """Print the script that completes commands, options and agents' ids in your shell.

    Its last line says which line your shell's settings need.
    """
    from click.shell_completion import get_completion_class

    from recalld.cli import COMPLETION_VARIABLE

    shell_class = get_completion_class(shell)
    assert shell_class is not None  # noqa: S101 - click has these three
    root = click.get_current_context().find_root()
    click.echo(shell_class(root.command, {}, "recalld", COMPLETION_VARIABLE).source())
    file, line = _SHELLS[shell]
    click.echo(f"# For {file}: {line}")
