"""Lock of the daemon of a home."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recalld.up.lock import daemon_pid, only_daemon
from schemas.errors import UserError
from tests.daemon import REPOSITORY

HOLDER = (
    "import sys\nfrom pathlib import Path\nfrom recalld.up.lock import only_daemon\n"
    "with only_daemon(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
)


def test_a_home_without_a_daemon_stays_as_it_is_when_it_is_asked(home: Path) -> None:
    assert daemon_pid(home) is None
    assert not home.exists()


def test_a_second_daemon_is_refused_with_the_first_one_s_process_id(home: Path) -> None:
    with only_daemon(home):
        with pytest.raises(UserError, match=rf"already runs for .*\(process {os.getpid()}\); stop it first"):
            only_daemon(home).__enter__()
        assert daemon_pid(home) == os.getpid(), "the refused one took nothing away"
        (home / "run" / "up.lock").write_text("")
        with pytest.raises(UserError, match=r"already runs for [^(]*; stop it first"):
            only_daemon(home).__enter__()
    assert daemon_pid(home) is None


def test_a_killed_daemon_leaves_the_home_to_the_next_one(home: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home)], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert daemon_pid(home) == holder.pid
        holder.send_signal(signal.SIGKILL)
        holder.wait(60)
    assert daemon_pid(home) is None
    (home / "run" / "up.lock").write_text("99999999999999")
    with only_daemon(home):
        assert daemon_pid(home) == os.getpid(), "a longer number does not shine through"


def test_a_home_that_cannot_be_written_is_said_in_one_sentence(home: Path) -> None:
    home.write_text("a file, not a folder")
    with pytest.raises(UserError, match="choose another folder with --home"):
        only_daemon(home).__enter__()
