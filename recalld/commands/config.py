"""`recalld config show`: the effective settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

from recalld.invocation import CommandGroup, Invocation, examples, json_option, pass_invocation
from recalld.settings.keys import URL_KEYS, SettingKey, agent_keys, top_level_keys
from recalld.settings.load import LoadedSettings
from recalld.terminal_text import print_answer, remark
from schemas.settings import Settings


@click.group("config", cls=CommandGroup, epilog=examples("recalld config show"))
def config() -> None:
    """Show the settings and where each of them came from."""


@config.command(
    "show", epilog=examples("recalld config show", "recalld config show --all", "recalld config show --json")
)
@click.option("--all", "shows_all", is_flag=True, help="Also print settings that have their default.")
@json_option
@pass_invocation
def show(invocation: Invocation, *, shows_all: bool, as_json: bool) -> None:
    """Print the settings that are not left at their default, and where each of them came from.

    JSON has every setting. Secrets are shown as ***.
    """
    loaded = invocation.loaded
    for problem in dict.fromkeys(agent.qmd.problem for agent in loaded.settings.agents):
        if problem is not None:
            remark(f"{problem}; QMD is not used until that is mended")
    values = effective(loaded.settings)
    settings = {key: {"value": value, "origin": loaded.origins[key]} for key, value in values.items()}
    answer = {"config": str(loaded.config) if loaded.config else None, "settings": settings}
    printed = {key: value for key, value in values.items() if shows_all or _is_set(key, settings)}
    print_answer(answer, _lines(loaded, printed), as_json=as_json)
    if len(printed) < len(values) and not as_json:
        remark("all other settings have their default; `recalld config show --all` prints them")


def _is_set(key: str, settings: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if a setting has a source, and is not the setting of all agents again, for one of them."""
    for_all = key.split(".", 2)[2] if key.startswith("agents.") else ""
    return settings[key]["origin"] != "default" and settings[key] != settings.get(for_all)


def _lines(loaded: LoadedSettings, values: Mapping[str, Any]) -> Iterator[str]:
    yield click.style(f"# settings file: {loaded.config or 'none'}", dim=True)
    lines = {key: f"{key} = {setting_text(value)}" for key, value in values.items()}
    width = max((len(line) for key, line in lines.items() if len(line) - len(key) < 43), default=0)
    for key, line in lines.items():
        if loaded.origins[key] == "default":
            yield click.style(line, dim=True)
        else:
            yield f"{line:<{width}}{click.style(f'  # {loaded.origins[key]}', fg='cyan')}"


MASK = "***"
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def effective(settings: Settings) -> dict[str, Any]:
    """Return every dotted key with its plain value; an agent's keys are called `agents.<id>.<key>`."""
    values: dict[str, Any] = {"home": str(settings.home)}
    tree = settings.model_dump(by_alias=True, exclude_none=True)
    for key in top_level_keys().values():
        if key.name != "agents":
            values[key.name] = _masked(tree, key)
    for agent in tree["agents"]:
        for key in agent_keys().values():
            values[f"agents.{agent['id']}.{key.name}"] = _masked(agent, key)
    return values


def setting_text(value: Any) -> str:
    """Return a value as the settings file would have it; "(unset)" for a key without a value."""
    return "(unset)" if value is None else json.dumps(value, ensure_ascii=False)


def _masked(tree: Mapping[str, Any], key: SettingKey) -> Any:
    """Return the value of a key, with secrets masked; None where it is unset."""
    value: Any = tree
    for part in key.name.split("."):
        value = value.get(part) if value is not None else None
    if value is None or not (key.secret or key.name in URL_KEYS):
        return json.loads(json.dumps(value, default=str))  # paths become texts, tuples lists
    if key.name in URL_KEYS:
        return _USERINFO.sub(MASK, value)
    return dict.fromkeys(value, MASK) if isinstance(value, Mapping) else MASK
