"""Where settings come from. The only module that reads settings files and the environment.

Sources, weakest first: the schema's defaults, `recalld.toml`, the environment, flags. Nothing heavy is imported
before `load` runs: finding the home folder is all that a search through a running service needs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recalld.remembered import remember_workspace, remembered_workspaces
from recalld.settings.places import absolute, home_folder, named_config
from schemas.errors import UserError

if TYPE_CHECKING:
    from recalld.settings.program_folders import ProgramFolders
    from recalld.settings_sources import AgentSource, Source
    from schemas.settings import AgentSettings, Settings

__all__ = [
    "LoadedSettings",
    "asked_by_systemd",
    "check_workspace",
    "environment_for_child",
    "files_of_variables",
    "find_config",
    "find_home",
    "load",
    "place_for_config",
    "program_folders",
    "remember_for_search",
    "remember_workspace",
    "select_agent",
    "settings_key",
]

#: The agent of somebody who has only one.
DEFAULT_AGENT = "main"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, and for every dotted key where its value came from ("default", a file, a variable, a flag)."""

    settings: Settings
    origins: Mapping[str, str]
    config: Path | None


def find_home(home: str | None = None, *, environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder that recalld writes to (`home_folder`)."""
    return Path(home_folder(home, os.environ if environment is None else environment))


#: The variables of sd_notify(3).
_SYSTEMD = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def environment_for_child(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with some variables set, for a process that it starts: systemd asks this one only."""
    return {**{name: value for name, value in os.environ.items() if name not in _SYSTEMD}, **extra}


def asked_by_systemd() -> dict[str, str]:
    """What systemd wants to know of this process and where: the variables of sd_notify(3) that are set."""
    return {name: os.environ[name] for name in _SYSTEMD if name in os.environ}


def program_folders(*, environment: Mapping[str, str] | None = None) -> ProgramFolders:
    """Where Claude Code, Codex and OpenClaw keep their files, as their own variables say."""
    from recalld.settings.program_folders import ProgramFolders

    return ProgramFolders.named_by(os.environ if environment is None else environment)


def find_config(config: str | None = None, *, home: Path, environment: Mapping[str, str] | None = None) -> Path | None:
    """The settings file: --config, else RECALLD_CONFIG, else the first of the two usual places that exists.

    A `recalld.toml` in the current directory is not read unless it is named: a folder that somebody else wrote
    must not decide where notes are sent.

    Raises:
        UserError: what was named is no file.
    """
    variables = os.environ if environment is None else environment
    named = named_config(config, variables)
    if named is not None:
        name, file = named[0], Path(named[1])
        if file.is_dir():
            raise UserError(f"{name}: {file} is a folder; name a settings file", exit_code=2)
        if not file.exists():
            raise UserError(f"{name}: there is no file {file}; correct the name", exit_code=2)
        return file
    return next((file for file in (_usual_config(variables), home / "recalld.toml") if file.exists()), None)


def files_of_variables(*, environment: Mapping[str, str] | None = None) -> list[Path]:
    """The files that NAME_FILE variables name: each holds one setting."""
    from recalld.settings_sources import FOREIGN_VARIABLES

    variables = os.environ if environment is None else environment
    return [
        Path(absolute(file))
        for name, file in sorted(variables.items())
        if file and name.endswith("_FILE")
        if name.startswith("RECALLD_") or name.removesuffix("_FILE") in FOREIGN_VARIABLES
    ]


def place_for_config(config: str | None, *, home: str | None, environment: Mapping[str, str] | None = None) -> Path:
    """Where settings written for this call belong: the file that it reads, or would read first."""
    variables = os.environ if environment is None else environment
    named = named_config(config, variables)
    if named is not None:
        return Path(named[1])
    folder = find_home(home, environment=variables)
    found = find_config(home=folder, environment=variables)
    if found is not None:
        return found
    if home or variables.get("RECALLD_HOME"):
        return folder / "recalld.toml"
    return _usual_config(variables)


def load(
    *,
    config: str | None = None,
    home: str | None = None,
    workspace: str | None = None,
    agent: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """Read every source and return the valid whole.

    `workspace` adds the agent (`main` unless `agent` names one) or replaces that agent's workspace. Without it, and
    if nothing else names any agent, the workspaces remembered in the home folder are used. `overrides` maps dotted
    keys to values, as flags give them.

    Raises:
        UserError: with exit code 2 and one line for every offending key.
    """
    from recalld.settings_resolution import resolve
    from recalld.settings_sources import from_environment, from_flags, from_table

    variables = os.environ if environment is None else environment
    here = Path.cwd()
    home_path = find_home(home, environment=variables)
    file = find_config(config, home=home_path, environment=variables)
    sources: list[Source] = []
    if file is not None:
        sources.append(from_table(_parsed(file), file=file))
    sources.append(from_environment(variables, base=here))
    flags = from_flags(overrides or {}, base=here)
    named = [found for source in sources for found in [source.agents] if found is not None]
    agents = named[-1] if named else None
    if workspace is not None:
        if agent is None and len(agents or []) > 1:
            raise UserError("--workspace: there are several agents; say whose it is with --agent", exit_code=2)
        flags.agents = _with_workspace(agents or [], agent or DEFAULT_AGENT, Path(absolute(workspace)))
    elif not agents:
        flags.agents = _remembered(home_path)
    sources.append(flags)
    settings, origins = resolve(sources, home=home_path)
    origins["home"] = _home_origin(home, variables)
    return LoadedSettings(settings, origins, file)


def settings_key(*, config: str | None, home: Path) -> str | None:
    """A digest of everything that settings without flags come from; None when it cannot be said cheaply."""
    from recalld import keyword_settings

    file = find_config(config, home=home)
    return keyword_settings.settings_key(home=home, config=file, environment=os.environ)


def remember_for_search(*, config: str | None, home: str | None) -> None:
    """Spare the next search by keywords the validation of the settings that it will find (no flags, same place)."""
    from recalld import keyword_settings

    folder = find_home(home)
    key = settings_key(config=config, home=folder)
    if key is None:
        return
    with suppress(UserError):  # valid with this command's flags only: then there is nothing to spare
        loaded = load(config=config, home=home)
        folder.mkdir(parents=True, exist_ok=True)
        keyword_settings.keep(loaded.settings, key)


def select_agent(settings: Settings, agent: str | None) -> AgentSettings:
    """The one agent that a command is about.

    Raises:
        UserError: there is none, or several and none was named, or none of that name.
    """
    known = ", ".join(found.id for found in settings.agents)
    if not settings.agents:
        raise UserError(
            "no workspace is known yet: start with `recalld up --workspace DIR`, or name the right --home; "
            "`recalld discover` lists what is on this machine",
            exit_code=2,
        )
    if agent is None:
        if len(settings.agents) > 1:
            raise UserError(f"there are several agents; say which with --agent (one of {known})", exit_code=2)
        return settings.agents[0]
    for found in settings.agents:
        if found.id == agent:
            return found
    raise UserError(f"--agent: no agent is called {agent!r}; known are {known}", exit_code=2)


def check_workspace(agent: AgentSettings) -> None:
    """See that the agent's workspace is a folder one can read.

    Raises:
        UserError: it is not, and what to do.
    """
    folder = agent.workspace
    if not folder.exists():
        problem = "does not exist; create it or name another with --workspace DIR"
    elif not folder.is_dir():
        problem = "is not a folder; name the folder that holds MEMORY.md and memory/"
    elif not os.access(folder, os.R_OK | os.X_OK):
        problem = "cannot be read; give this user permission to list it"
    else:
        return
    raise UserError(f"the workspace {folder} of agent {agent.id!r} {problem}", exit_code=2)


def _usual_config(variables: Mapping[str, str]) -> Path:
    return Path(absolute(variables.get("XDG_CONFIG_HOME") or "~/.config")) / "recalld" / "recalld.toml"


def _parsed(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror})", exit_code=2) from None
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8 text", exit_code=2) from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file} is not valid TOML: {error}", exit_code=2) from None


def _with_workspace(agents: list[AgentSource], agent: str, workspace: Path) -> list[AgentSource]:
    """The same agents, with this one's workspace replaced, or this one added."""
    from recalld.settings_sources import AgentSource, Written

    written = Written(str(workspace), "--workspace", "--workspace")
    kept = []
    replaced = False
    for known in agents:
        own = known.keys.get("id")
        if own is not None and own.value == agent:
            known = AgentSource(known.label, known.origin, {**known.keys, "workspace": written})  # noqa: PLW2901
            replaced = True
        kept.append(known)
    if not replaced:
        name = Written(agent, "--agent", "--agent")
        kept.append(AgentSource("--workspace", "--workspace", {"id": name, "workspace": written}))
    return kept


def _remembered(home: Path) -> list[AgentSource]:
    from recalld.settings_sources import AgentSource, Written

    file = str(home / "agents.json")
    return [
        AgentSource(
            file,
            file,
            {
                "id": Written(agent, file, f"{file}: {agent}"),
                "workspace": Written(str(workspace), file, f"{file}: {agent}"),
            },
        )
        for agent, workspace in remembered_workspaces(home).items()
    ]


def _home_origin(home: str | None, variables: Mapping[str, str]) -> str:
    if home:
        return "--home"
    return "RECALLD_HOME" if variables.get("RECALLD_HOME") else "default"
