"""Who runs the daemon of a home."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from recalld.up.lock import daemon_pid, only_daemon
from schemas.errors import UserError
from tests.daemon import REPOSITORY

HOLDER = (
    "import sys\nfrom pathlib import Path\nfrom recalld.up.lock import only_daemon\n"
    "with only_daemon(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
)


def test_a_home_that_nobody_ran_has_no_daemon(home: Path) -> None:
    assert daemon_pid(home) is None
    assert not home.exists(), "asking leaves nothing behind"


def test_a_second_daemon_is_refused_with_the_first_one_s_process_id(home: Path) -> None:
    with only_daemon(home):
        with pytest.raises(UserError, match=rf"already runs for .*\(process {os.getpid()}\); stop it first"):
            only_daemon(home).__enter__()
        assert daemon_pid(home) == os.getpid(), "the refused one took nothing away"
    assert daemon_pid(home) is None
    with only_daemon(home):
        assert daemon_pid(home) == os.getpid()


def test_a_killed_daemon_leaves_the_home_to_the_next_one(home: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home)], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert daemon_pid(home) == holder.pid
        with pytest.raises(UserError, match=f"process {holder.pid}"):
            only_daemon(home).__enter__()
        holder.send_signal(signal.SIGKILL)
        holder.wait(60)
    assert (home / "run" / "up.lock").read_text() == str(holder.pid), "its number is still there and means nothing"
    assert daemon_pid(home) is None
    with only_daemon(home):
        assert daemon_pid(home) == os.getpid()


def test_a_longer_number_of_the_last_daemon_does_not_shine_through(home: Path) -> None:
    (home / "run").mkdir(parents=True)
    (home / "run" / "up.lock").write_text("99999999999999")
    with only_daemon(home):
        assert (home / "run" / "up.lock").read_text() == str(os.getpid())


def test_somebody_who_only_asks_does_not_keep_a_daemon_from_starting(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "run").mkdir(parents=True)
    flock = fcntl.flock
    with (home / "run" / "up.lock").open("w+") as asking:
        flock(asking, fcntl.LOCK_SH)
        refused: list[OSError] = []

        def watched(handle: IO[str], how: int) -> None:
            try:
                flock(handle, how)
            except OSError as error:
                refused.append(error)
                flock(asking, fcntl.LOCK_UN)
                raise

        monkeypatch.setattr(fcntl, "flock", watched)
        with only_daemon(home):
            assert len(refused) == 1
            assert daemon_pid(home) == os.getpid()


def test_a_lock_without_a_number_is_still_a_lock(home: Path) -> None:
    (home / "run").mkdir(parents=True)
    with (home / "run" / "up.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"already runs for [^(]*; stop it first"):
            only_daemon(home).__enter__()


def test_a_home_that_cannot_be_written_is_said_in_one_sentence(home: Path) -> None:
    home.write_text("a file, not a folder")
    with pytest.raises(UserError, match="choose another folder with --home"):
        only_daemon(home).__enter__()
