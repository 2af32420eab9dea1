"""`recalld config show`: the effective settings."""

from __future__ import annotations

import click

from recalld.invocation import Invocation, pass_invocation
from recalld.local.fallback import print_json


@click.group("config")
def command() -> None:
    """Show the settings and where each of them came from."""


@command.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_invocation
def show(invocation: Invocation, *, as_json: bool) -> None:
    """Print every setting that holds, and its origin. Secrets are shown as ***."""
    from recalld.settings.view import effective, shown

    loaded = invocation.loaded
    values = effective(loaded.settings)
    if as_json:
        print_json(
            {
                "config": str(loaded.config) if loaded.config else None,
                "settings": {
                    key: {"value": value, "origin": loaded.origins.get(key, "default")} for key, value in values.items()
                },
            }
        )
        return
    click.secho(f"# settings file: {loaded.config or 'none'}", dim=True)
    width = max(len(f"{key} = {shown(value)}") for key, value in values.items() if len(shown(value)) < 40)
    for key, value in values.items():
        origin = loaded.origins.get(key, "default")
        line = f"{key} = {shown(value)}"
        if origin == "default":
            click.secho(line, dim=True)
        else:
            click.echo(f"{line:<{width}}", nl=False)
            click.secho(f"  # {origin}", fg="cyan")
