"""`recalld config show`: the effective settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel, SecretStr

from recalld.invocation import Invocation, pass_invocation
from recalld.local.fallback import print_json
from recalld.settings.keys import URL_KEYS, SettingKey, agent_keys, top_level_keys
from schemas.settings import Settings


@click.group("config")
def command() -> None:
    """Show the settings and where each of them came from."""


@command.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_invocation
def show(invocation: Invocation, *, as_json: bool) -> None:
    """Print every setting that holds, and its origin. Secrets are shown as ***."""
    from recalld.commands.config import effective, shown

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


MASK = "***"
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def effective(settings: Settings) -> dict[str, Any]:
    """Return every dotted key with its plain value; an agent's keys are called `agents.<id>.<key>`."""
    values: dict[str, Any] = {"home": str(settings.home)}
    tree = settings.model_dump(by_alias=True)
    for key in top_level_keys().values():
        if key.name != "agents":
            values[key.name] = _plain(_at(tree, key.name), key)
    for agent in settings.agents:
        own = agent.model_dump(by_alias=True)
        for key in agent_keys().values():
            values[f"agents.{agent.id}.{key.name}"] = _plain(_at(own, key.name), key)
    return values


def shown(value: Any) -> str:
    """Return a value as the settings file would have it; "(unset)" for a key without a value."""
    return "(unset)" if value is None else json.dumps(value, ensure_ascii=False)


def _at(tree: Mapping[str, Any], key: str) -> Any:
    value: Any = tree
    for part in key.split("."):
        value = value[part]
    return value


def _plain(value: Any, key: SettingKey) -> Any:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {name: MASK if key.secret else _plain(item, key) for name, item in value.items() if item is not None}
    if isinstance(value, SecretStr) or key.secret:
        return MASK
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, list | tuple):
        return [_plain(item, key) for item in value]
    if isinstance(value, Path):
        return str(value)
    if key.name in URL_KEYS and isinstance(value, str):
        return _USERINFO.sub(MASK, value)
    return value
