"""The workspaces that flags named once, kept in `<home>/agents.json` so that later commands need no flags."""

from __future__ import annotations

import json
import os
from pathlib import Path

from schemas.errors import UserError


def remembered_workspaces(home: Path) -> dict[str, Path]:
    """Agent id -> workspace; empty when nothing was remembered.

    Raises:
        UserError: the file is there and cannot be understood.
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
    """Keep one agent's workspace, beside those that are kept already.

    Raises:
        UserError: the home folder cannot be written.
    """
    try:
        known = remembered_workspaces(home)
    except UserError:
        known = {}  # damaged: what is given now is what counts
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
