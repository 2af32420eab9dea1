"""The suite catches defects that are put into a copy of the product on purpose, and kills at points that exist."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from tests.chaos.kill_points import KILL_POINTS, KillPoint
from tests.chaos.seeded_defects import DEFECTS, Defect
from tests.chaos.siege import IMPATIENCE

REPOSITORY = Path(__file__).resolve().parents[2]

#: pytest's exit code when tests ran and some failed. A run that could not even collect them has another one.
TESTS_FAILED = 1


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the checkout."""
    folder = tmp_path_factory.mktemp("copy") / "checkout"
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=REPOSITORY, text=True)
    for name in filter(None, files.split("\0")):
        source = REPOSITORY / name
        if source.is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / name)
    return folder


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name.replace(" ", "_"))
def test_a_defect_has_one_place_in_the_product(defect: Defect) -> None:
    """A change of that line moves the defect along."""
    assert (REPOSITORY / defect.file).read_text("utf-8").count(defect.right) == 1


@pytest.mark.parametrize("point", KILL_POINTS, ids=lambda point: point.name.replace(" ", "_"))
def test_a_kill_point_has_its_function_in_the_product(point: KillPoint) -> None:
    """A rename of that function moves the kill point along."""
    module, _, function = point.function.partition(":")
    assert callable(attrgetter(function)(import_module(module)))


@pytest.mark.parametrize("constant", IMPATIENCE)
def test_a_constant_of_the_siege_is_in_the_product(constant: str) -> None:
    """A rename of that constant moves its other value along."""
    module, _, name = constant.partition(":")
    assert isinstance(getattr(import_module(module), name), int | float)


@pytest.mark.long
@pytest.mark.parametrize("tests", sorted({defect.caught_by for defect in DEFECTS}), ids=" ".join)
def test_without_a_defect_they_pass(copy: Path, tests: tuple[str, ...]) -> None:
    """Run the tests in the unchanged copy, so that a failure below is the defect's."""
    run = _run(copy, tests)
    assert run.returncode == 0, run.stdout[-2000:]


@pytest.mark.long
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name.replace(" ", "_"))
def test_a_seeded_defect_is_caught(copy: Path, defect: Defect) -> None:
    """Break a promise in the copy; the tests that hold it fail."""
    file = copy / defect.file
    before = file.read_text("utf-8")
    file.write_text(before.replace(defect.right, defect.wrong), "utf-8")
    try:
        run = _run(copy, defect.caught_by)
    finally:
        file.write_text(before, "utf-8")
    assert run.returncode == TESTS_FAILED, run.stdout[-2000:]


def _run(copy: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile=thorough", *tests],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
