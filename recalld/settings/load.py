"""Loading of settings: the only module that reads settings files and the environment.

Sources, weakest first: the schema's defaults, `recalld.toml`, the environment, flags. Nothing heavy is imported
before `load` runs: a search through a running service needs only the home folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recalld.settings.places import absolute, home_folder, named_config
from recalld.settings.workspaces import WORKSPACES_FILE, NamedWorkspace, add_workspaces, remembered_workspaces
from schemas.errors import UserError

if TYPE_CHECKING:
    from recalld.settings.program_folders import ProgramFolders
    from schemas.settings import AgentSettings, Settings


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, with the origin of every dotted key: "default", a file, a variable or a flag.

    `workspace` is that of --workspace, with its agent. `remarks` are sentences for the user about agents of the home.
    """

    settings: Settings
    origins: Mapping[str, str]
    config: Path | None
    workspace: NamedWorkspace | None = None
    remarks: Sequence[str] = ()


def find_home(home: str | None = None, *, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that recalld writes to (`home_folder`)."""
    return Path(home_folder(home, environment))


#: The variables of sd_notify(3).
_SYSTEMD = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def environment_for_child() -> dict[str, str]:
    """Return this process's environment for a child process, which systemd does not watch."""
    return {name: value for name, value in os.environ.items() if name not in _SYSTEMD}


def systemd_variables() -> dict[str, str]:
    """Return the variables of sd_notify(3) that are set for this process."""
    return {name: os.environ[name] for name in _SYSTEMD if name in os.environ}


def has_display(*, environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if programs with windows can be started here, by the variables of X11 and Wayland."""
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def program_folders(*, environment: Mapping[str, str] = os.environ) -> ProgramFolders:
    """Return the folders of Claude Code, Codex and OpenClaw, as their own variables name them."""
    from recalld.settings.program_folders import ProgramFolders

    return ProgramFolders.named_by(environment)


def find_config(config: str | None = None, *, home: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the settings file: --config, else RECALLD_CONFIG, else the first of the two usual places that exists.

    A `recalld.toml` in the current directory is not read unless it is named: a folder from a stranger must not decide
    where notes are sent.

    Raises:
        UserError: the named path is no file.
    """
    source = named_config(config, environment)
    if source is not None:
        name, file = source[0], Path(source[1])
        if file.is_dir():
            raise UserError(f"{name}: {file} is a folder; name a settings file", exit_code=2)
        if not file.exists():
            raise UserError(f"{name}: there is no file {file}; correct the name", exit_code=2)
        return file
    return next((file for file in (_usual_config(environment), home / "recalld.toml") if file.exists()), None)


def variables_of_settings(*, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the variables that are set and decide a setting: keys among them, home and settings file not."""
    from recalld.settings.resolution import FOREIGN_VARIABLES

    names = {name.removesuffix("_FILE") for name, text in environment.items() if text}
    settings = {name for name in names if name.startswith("RECALLD_")} - {"RECALLD_HOME", "RECALLD_CONFIG"}
    return sorted(settings | (names & FOREIGN_VARIABLES.keys()))


def files_of_variables(*, environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the files that NAME_FILE variables name: each holds one setting."""
    from recalld.settings.resolution import FOREIGN_VARIABLES

    return [
        Path(absolute(file))
        for name, file in sorted(environment.items())
        if file and name.endswith("_FILE")
        if name.startswith("RECALLD_") or name.removesuffix("_FILE") in FOREIGN_VARIABLES
    ]


def config_to_write(config: str | None, *, home: str | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file for settings that this call writes: the file that it reads, or would read first."""
    source = named_config(config, environment)
    if source is not None:
        return Path(source[1])
    folder = find_home(home, environment=environment)
    file = find_config(home=folder, environment=environment)
    if file is not None:
        return file
    if home or environment.get("RECALLD_HOME"):
        return folder / "recalld.toml"
    return _usual_config(environment)


def load(
    *,
    config: str | None = None,
    home: str | None = None,
    workspace: str | None = None,
    agent: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> LoadedSettings:
    """Read every source and return the valid whole.

    The workspaces remembered in the home folder, and `workspace`, are agents beside those that the settings name
    (`add_workspaces`). `overrides` maps dotted keys to values, as flags give them.

    Raises:
        UserError: with exit code 2 and one line for every offending key.
    """
    from recalld.settings.resolution import Draft, resolve

    home_path = find_home(home, environment=environment)
    file = find_config(config, home=home_path, environment=environment)
    draft = Draft()
    if file is not None:
        draft.add_file(_parsed(file), file=file)
    draft.add_environment(environment, base=Path.cwd())
    draft.add_flags(overrides or {}, base=Path.cwd())
    damage, remembered = [], {}
    try:
        remembered = remembered_workspaces(home_path)
    except UserError as error:
        if workspace is None and not draft.agents:
            raise
        damage.append(str(error))
    folder = absolute(workspace) if workspace is not None else None
    chosen, remarks = add_workspaces(draft, remembered, file=home_path / WORKSPACES_FILE, folder=folder, agent=agent)
    settings, origins = resolve(draft, home=home_path)
    origins["home"] = "--home" if home else "RECALLD_HOME" if environment.get("RECALLD_HOME") else "default"
    return LoadedSettings(settings, origins, file, chosen, (*damage, *remarks))


def indexes_folder(home: Path, config: Path | None, *, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of indexes: `store.path`, else the home's. Cheap; other settings may be wrong."""
    folder, base = environment.get("RECALLD_STORE__PATH"), Path.cwd()
    if config is not None and not folder:
        with suppress(UserError, KeyError, TypeError):
            folder, base = str(_parsed(config)["store"]["path"]), config.parent
    return Path(os.path.normpath(base / Path(folder).expanduser())) if folder else home / "indexes"


def select_agent(settings: Settings, agent: str | None) -> AgentSettings:
    """Return the one agent that a command is about.

    Raises:
        UserError: there is none, or several and none was named, or none of that name.
    """
    problem = agent_problem([configured.id for configured in settings.agents], agent)
    if problem is not None:
        raise problem
    return settings.agent(agent or settings.agents[0].id)


def agent_problem(agent_ids: Sequence[str], agent: str | None) -> UserError | None:
    """Return the error of a command about one of these agents; None if the agent is clear."""
    if not agent_ids:
        problem = (
            "no workspace is known yet: start with `recalld up --workspace DIR`, or name the right --home; "
            "`recalld discover` lists what is on this machine"
        )
    elif agent is None and len(agent_ids) > 1:
        problem = f"there are several agents; say which with --agent (one of {', '.join(agent_ids)})"
    elif agent is not None and agent not in agent_ids:
        nearest = did_you_mean(agent, agent_ids) or f"; known are {', '.join(agent_ids)}"
        problem = f"--agent: no agent is called {agent!r}{nearest}"
    else:
        return None
    return UserError(problem, exit_code=2)


def did_you_mean(key: str, names: Iterable[str]) -> str:
    """Return a suggestion if a known name is near: by its whole name, else by its last part, the shallowest first."""
    from difflib import get_close_matches

    # Without case and underscores: maxResults is near max_results.
    plain = {name: name.lower().replace("_", "") for name in (key, *sorted(names, key=lambda name: name.count(".")))}
    leaves = {name: text.rpartition(".")[2] for name, text in plain.items()}
    for texts in (plain, leaves):
        by_text = {text: name for name, text in reversed(texts.items()) if name != key}
        if near := get_close_matches(texts[key], by_text, n=1, cutoff=0.8):
            return f"; did you mean {by_text[near[0]]}?"
    return ""


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


def _usual_config(environment: Mapping[str, str]) -> Path:
    return Path(absolute(environment.get("XDG_CONFIG_HOME") or "~/.config")) / "recalld" / "recalld.toml"


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


def written_agents(config: str | None, *, home: Path) -> list[str]:
    """Return the ids of agents in the settings file, and of the remembered workspaces. Cheap; checks nothing.

    For a shell that completes a word: settings that cannot be read give no id.
    """
    try:
        file = find_config(config, home=home)
        tables = _parsed(file).get("agents", ()) if file is not None else ()
        ids = [str(table["id"]) for table in tables if isinstance(table, dict) and "id" in table]
        return list(dict.fromkeys([*ids, *remembered_workspaces(home)]))
    except (UserError, TypeError):
        return []
