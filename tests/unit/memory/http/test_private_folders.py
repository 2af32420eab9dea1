"""Folders in which other users could put files of theirs."""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from pathlib import Path

import pytest

from memory.http.private_folders import check_private, is_others, open_to_others, temporary_folder
from schemas.conditions import ConditionCode
from schemas.errors import UserError

#: A user, its own group, a group that it shares, a group that no user has, and another user.
ANN, OF_ANN, SHARED, UNKNOWN, BOB = 1000, 1000, 100, 5000, 1001
GROUPS = {0: {0}, OF_ANN: {ANN}, SHARED: {ANN, BOB}, UNKNOWN: set[int]()}


def status(mode: int, user: int, group: int) -> os.stat_result:
    return os.stat_result((stat.S_IFDIR | mode, 1, 1, 1, user, group, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("user", "mode", "owner", "group", "others", "outer"),
    [
        (ANN, 0o700, ANN, OF_ANN, False, False),
        (ANN, 0o755, ANN, SHARED, False, False),
        (ANN, 0o775, ANN, OF_ANN, False, False),
        (ANN, 0o775, ANN, SHARED, True, True),
        (ANN, 0o777, ANN, OF_ANN, True, True),
        (ANN, 0o1777, ANN, OF_ANN, True, False),
        (ANN, 0o755, BOB, SHARED, True, True),
        # Root is no other user, and its own groups are not either.
        (ANN, 0o755, 0, 0, False, False),
        (ANN, 0o2775, 0, UNKNOWN, False, False),
        (ANN, 0o2775, 0, 0, False, False),
        (ANN, 0o777, 0, 0, True, False),
        (ANN, 0o1777, 0, 0, True, False),
        (0, 0o777, 0, 0, True, True),
        (0, 0o1777, 0, 0, True, False),
        (0, 0o700, ANN, OF_ANN, True, True),
    ],
)
def test_a_folder_is_its_users_alone_if_no_other_owns_or_may_write_it(
    user: int, mode: int, owner: int, group: int, *, others: bool, outer: bool
) -> None:
    def judged(*, is_outer: bool) -> bool:
        return is_others(status(mode, owner, group), user=user, members=GROUPS.__getitem__, is_outer=is_outer)

    assert (judged(is_outer=False), judged(is_outer=True)) == (others, outer)


def test_the_first_folder_that_others_may_write_is_named_with_a_command(tmp_path: Path) -> None:
    folder = tmp_path / "it's mine" / "run" / "tokens"
    assert open_to_others(folder, within=tmp_path) is None, "it will be made"
    folder.mkdir(parents=True, mode=0o700)
    assert open_to_others(folder, within=tmp_path) is None
    assert open_to_others(folder) is None, "the system's temporary folder is sticky"
    (tmp_path / "it's mine").chmod(0o777)
    condition = open_to_others(folder, within=tmp_path)
    assert condition is not None
    assert (condition.code, condition.subject) == (ConditionCode.FOLDER_OPEN_TO_OTHERS, str(tmp_path / "it's mine"))
    assert os.system(str(condition.params["command"])) == 0
    assert open_to_others(folder, within=tmp_path) is None
    folder.chmod(0o702)
    tmp_path.chmod(0o777)
    with pytest.raises(UserError) as refused:
        check_private(folder, home=tmp_path)
    assert f"`chmod go-w {shlex.quote(str(folder))}`" in str(refused.value)
    folder.chmod(0o700)
    with pytest.raises(UserError):
        check_private(folder, home=tmp_path)
    check_private(folder, home=folder.parent)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder away")
def test_another_users_folder_is_named_with_the_command_that_takes_it_back(tmp_path: Path) -> None:
    os.chown(tmp_path, BOB, BOB)
    condition = open_to_others(tmp_path / "run", within=tmp_path)
    assert condition is not None
    assert condition.params["command"] == f"chown 0 {tmp_path}"


def test_a_folder_for_temporary_files_is_its_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = temporary_folder("models")
    assert (temporary_folder("models"), stat.S_IMODE(folder.stat().st_mode)) == (folder, 0o700)
    folder.chmod(0o777)
    with pytest.raises(UserError):
        temporary_folder("models")
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError):
        temporary_folder("models")
