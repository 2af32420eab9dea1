"""The private Valkey server says why it does not start."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon import REPOSITORY, clean_environment
from workers.queue.private_server import last_warning


def test_too_few_open_files_are_named_as_the_reason_of_a_server_that_does_not_start(home: Path, workspace: Path):
    command = [sys.executable, "-m", "recalld", "--home", str(home), "index", "--workspace", str(workspace)]
    (workspace / "memory" / "a.md").write_text("a note\n", "utf-8")
    ended = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -n 32; exec {shlex.join(command)}"],
        cwd=REPOSITORY,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1
    assert "'ulimit -n' of 32" in ended.stderr
    assert str(home / "broker" / "valkey.log") in ended.stderr


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            "1:M 28 Nov 2026 * starts\n1:M 28 Nov 2026 # first.\n1:M 28 Nov 2026 # Last one. Exiting.\n",
            ": Last one. Exiting",
        ),
        ("1:M 28 Nov 2026 * starts\n", ""),
        (None, ""),
    ],
)
def test_the_last_warning_of_a_log_is_its_reason(tmp_path: Path, log: str | None, said: str):
    if log is not None:
        (tmp_path / "valkey.log").write_text(log, "utf-8")
    assert last_warning(tmp_path / "valkey.log") == said
