"""Folders that only their user may write. Files in any other folder are neither executed nor trusted."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
import tempfile
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from pathlib import Path

from schemas.conditions import Condition, ConditionCode
from schemas.errors import UserError


def is_others(
    status: os.stat_result, *, user: int, members: Callable[[int], Collection[int]], is_outer: bool = False
) -> bool:
    """Return True if a user beside `user` and root owns the folder or may write it. `members` gives a group's users.

    In an outer folder other users may write if it is sticky or opened by root: they cannot pass for the owner of a
    folder in it.
    """
    if status.st_uid not in {0, user}:
        return True
    writable = status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and not {*members(status.st_gid)} <= {0, user}
    )
    return bool(writable) and not (is_outer and (status.st_mode & stat.S_ISVTX or status.st_uid != user))


def open_to_others(folder: Path, *, within: Path | None = None) -> Condition | None:
    """Return the condition that another user may write a folder, or one around it up to `within`; None if none may.

    A folder that is not there, or that this user cannot look into, is passed over.
    """
    user = os.geteuid()
    for place in (folder, *folder.parents):
        with suppress(OSError):
            status = place.stat()
            if is_others(status, user=user, members=_members, is_outer=place != folder):
                command = "chmod go-w" if status.st_uid in {0, user} else f"chown {user}"
                command = f"{command} {shlex.quote(str(place))}"
                return Condition(ConditionCode.FOLDER_OPEN_TO_OTHERS, str(place), params={"command": command})
        if place == within:
            break
    return None


def check_private(folder: Path, *, home: Path) -> None:
    """Check that no other user may write a folder of the home in which tokens or sockets lie.

    Raises:
        UserError: another user may.
    """
    if (condition := open_to_others(folder, within=home)) is not None:
        raise UserError(
            f"other users may write {condition.subject}, where tokens and sockets would be theirs as well: type "
            f"`{condition.params['command']}`, or choose another folder with --home or RECALLD_HOME"
        )


def temporary_folder(name: str) -> Path:
    """Return a folder of this user, for files that are made anew when it is gone.

    Raises:
        UserError: another user has a folder of that name.
        OSError: it cannot be made.
    """
    folder = Path(tempfile.gettempdir()) / f"recalld-{os.getuid()}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or open_to_others(folder, within=folder) is not None:
        raise UserError(f"{folder} belongs to another user; remove it, or choose another folder with TMPDIR")
    return folder


@cache
def _members(group: int) -> frozenset[int]:
    """Return the users of a group."""
    users = {entry.pw_uid for entry in pwd.getpwall() if entry.pw_gid == group}
    with suppress(KeyError):  # a group of another machine, or of a container's manager
        for name in grp.getgrgid(group).gr_mem:
            users.add(pwd.getpwnam(name).pw_uid)
    return frozenset(users)
