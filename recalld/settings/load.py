"""Loading of settings: the only module that reads settings files and the environment.

Sources, weakest first: the schema's defaults, `recalld.toml`, the environment, flags. Nothing heavy is imported
before `load` runs: a search through a running service needs only the home folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recalld.settings.places import absolute, home_folder, named_config
from schemas.errors import UserError

if TYPE_CHECKING:
    from recalld.settings.program_folders import ProgramFolders
    from recalld.settings.sources import AgentTable, Source
    from schemas.settings import AgentSettings, Settings

#: Id of the agent where there is only one.
DEFAULT_AGENT = "main"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, with the origin of every dotted key: "default", a file, a variable or a flag."""

    settings: Settings
    origins: Mapping[str, str]
    config: Path | None


def find_home(home: str | None = None, *, environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder that recalld writes to (`home_folder`)."""
    return Path(home_folder(home, os.environ if environment is None else environment))


#: The variables of sd_notify(3).
_SYSTEMD = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def environment_for_child(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment and some more variables, for a child process, which systemd does not watch."""
    return {**{name: value for name, value in os.environ.items() if name not in _SYSTEMD}, **extra}


def asked_by_systemd() -> dict[str, str]:
    """Return the variables of sd_notify(3) that are set for this process."""
    return {name: os.environ[name] for name in _SYSTEMD if name in os.environ}


def program_folders(*, environment: Mapping[str, str] | None = None) -> ProgramFolders:
    """Return the folders of Claude Code, Codex and OpenClaw, as their own variables name them."""
    from recalld.settings.program_folders import ProgramFolders

    return ProgramFolders.named_by(os.environ if environment is None else environment)


def find_config(config: str | None = None, *, home: Path, environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the settings file: --config, else RECALLD_CONFIG, else the first of the two usual places that exists.

    A `recalld.toml` in the current directory is not read unless it is named: a folder from a stranger must not decide
    where notes are sent.

    Raises:
        UserError: the named path is no file.
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
    """Return the files that NAME_FILE variables name: each holds one setting."""
    from recalld.settings.sources import FOREIGN_VARIABLES

    variables = os.environ if environment is None else environment
    return [
        Path(absolute(file))
        for name, file in sorted(variables.items())
        if file and name.endswith("_FILE")
        if name.startswith("RECALLD_") or name.removesuffix("_FILE") in FOREIGN_VARIABLES
    ]


def place_for_config(config: str | None, *, home: str | None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the file for settings that this call writes: the file that it reads, or would read first."""
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
    from recalld.settings.resolution import resolve
    from recalld.settings.sources import from_environment, from_flags, from_table

    variables = os.environ if environment is None else environment
    here = Path.cwd()
    home_path = find_home(home, environment=variables)
    file = find_config(config, home=home_path, environment=variables)
    sources: list[Source] = []
    if file is not None:
        sources.append(from_table(_parsed(file), file=file))
    sources.append(from_environment(variables, base=here))
    flags = from_flags(overrides or {}, base=here)
    agents = next((source.agents for source in reversed(sources) if source.agents is not None), [])
    if workspace is not None:
        if agent is None and len(agents) > 1:
            raise UserError("--workspace: there are several agents; say whose it is with --agent", exit_code=2)
        flags.agents = _with_workspace(agents, agent or DEFAULT_AGENT, Path(absolute(workspace)))
    elif not agents:
        flags.agents = _remembered(home_path)
    settings, origins = resolve([*sources, flags], home=home_path)
    origins["home"] = "--home" if home else "RECALLD_HOME" if variables.get("RECALLD_HOME") else "default"
    return LoadedSettings(settings, origins, file)


def select_agent(settings: Settings, agent: str | None) -> AgentSettings:
    """Return the one agent that a command is about.

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
    found = next((found for found in settings.agents if found.id == agent), None)
    if found is None:
        raise UserError(f"--agent: no agent is called {agent!r}; known are {known}", exit_code=2)
    return found


def check_workspace(agent: AgentSettings) -> None:
    """Check that the agent's workspace is a readable folder.

    Raises:
        UserError: it is not.
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


def remembered_workspaces(home: Path) -> dict[str, Path]:
    """Return agent id -> workspace as flags named them once, from `<home>/agents.json`.

    Raises:
        UserError: the file is damaged or unreadable.
    """
    file = home / "agents.json"
    try:
        content = json.loads(file.read_text("utf-8"))
        return {str(agent): Path(workspace) for agent, workspace in content["agents"].items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}); mend that or give --workspace") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{file} is damaged; delete it and give --workspace again", exit_code=2) from None


def remember_workspace(home: Path, agent: str, workspace: Path) -> None:
    """Keep one agent's workspace in `<home>/agents.json`, so that later commands need no flag.

    Raises:
        UserError: the home folder cannot be written.
    """
    try:
        known = remembered_workspaces(home)
    except UserError:
        known = {}  # damaged: the workspace given now counts
    if known.get(agent) == workspace:
        return
    known[agent] = workspace
    content = json.dumps({"agents": {name: str(path) for name, path in sorted(known.items())}}, indent=2) + "\n"
    try:
        home.mkdir(parents=True, exist_ok=True)
        new = home / f".agents-{os.getpid()}.json"
        with new.open("w", encoding="utf-8") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        new.replace(home / "agents.json")
    except OSError as error:
        raise UserError(f"{home} cannot be written ({error.strerror}); choose another folder with --home") from None


def _with_workspace(agents: list[AgentTable], agent: str, workspace: Path) -> list[AgentTable]:
    """Return the agents with the workspace of one replaced, or with that one added."""
    from recalld.settings.sources import AgentTable, Written

    written = Written(str(workspace), "--workspace", "--workspace")
    changed = []
    for known in agents:
        is_meant = "id" in known.keys and known.keys["id"].value == agent
        changed.append(AgentTable(known.label, {**known.keys, "workspace": written}) if is_meant else known)
    if changed == agents:
        named = Written(agent, "--agent", "--agent")
        changed.append(AgentTable("--workspace", {"id": named, "workspace": written}))
    return changed


def _remembered(home: Path) -> list[AgentTable]:
    from recalld.settings.sources import AgentTable, Written

    file = str(home / "agents.json")
    return [
        AgentTable(
            file,
            {
                "id": Written(agent, file, f"{file}: {agent}"),
                "workspace": Written(str(workspace), file, f"{file}: {agent}"),
            },
        )
        for agent, workspace in remembered_workspaces(home).items()
    ]
