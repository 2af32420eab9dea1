"""What our processes run of the folder where they were typed: nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from memory.embedding.providers.local import unpack_weights
from recalld.up.own_processes import own_command, own_environment
from recalld.up.supervisor import Child
from tests.waiting import wait_until

CHECKOUT = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, where files are named like modules that we import."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in ("click", "mcp", "memory", "numpy", "recalld", "redis", "schemas", "structlog"):
        (folder / f"{name}.py").write_text("raise SystemExit('a file of the current folder was run')\n", "utf-8")
    monkeypatch.chdir(folder)
    return folder


def test_a_supervised_process_runs_nothing_of_the_current_folder(tmp_path: Path) -> None:
    child = Child("serve", ["serve", "--help"], log_folder=tmp_path / "log")
    child.start()
    try:
        wait_until(lambda: child.ended_with() is not None)
        assert (child.ended_with(), child.log.read_text("utf-8")) == (0, "")
    finally:
        child.stop()


def test_the_model_is_unpacked_without_the_current_folder(tmp_path: Path) -> None:
    unpack_weights(tmp_path / "weights")
    assert list((tmp_path / "weights").iterdir())


def test_the_code_that_runs_is_the_one_of_whoever_starts_it() -> None:
    python, safely, *_ = own_command("recalld")
    code = "import recalld; print(recalld.__file__, end='')"
    ran = subprocess.run(
        [python, safely, "-c", code],
        env=own_environment(os.environ),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert Path(ran.stdout).parents[1] == CHECKOUT


def test_a_developers_own_folders_are_looked_at_and_nothing_stands_for_the_current_one() -> None:
    def folders(value: str) -> list[str]:
        return own_environment({"PYTHONPATH": value, "A": "b"})["PYTHONPATH"].split(os.pathsep)

    assert folders("/mine:/theirs") == [str(CHECKOUT), "/mine", "/theirs"]
    assert folders(f"/mine::{CHECKOUT}:") == [str(CHECKOUT), "/mine"]
    assert folders("") == [str(CHECKOUT)]
