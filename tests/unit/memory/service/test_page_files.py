"""The page's files: whole, of known kinds, and nothing in them comes from elsewhere or reads text as HTML."""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from memory.service.app import PAGE_FOLDER

ROOT = Path(__file__).parents[4]

FILES = sorted(file for file in PAGE_FOLDER.iterdir() if file.is_file())
VENDORED = sorted((PAGE_FOLDER / "vendor").iterdir())


def test_the_wheel_ships_every_file(tmp_path: Path) -> None:
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))

    with zipfile.ZipFile(wheel) as packed:
        shipped = {Path(name).name for name in packed.namelist() if name.startswith("memory/service/page/")}
    assert shipped == {file.name for file in [*FILES, *VENDORED]}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_is_loaded_from_elsewhere_and_no_text_is_read_as_html(file: Path) -> None:
    text = file.read_text("utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")

    assert re.findall(r"https?:|//[a-z]+\.|@import|url\(", text) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|Function\(", text) == []
    if file.suffix == ".html":
        # The policy allows neither scripts nor styles in the page itself.
        assert re.findall(r"<script(?![^>]*src=)|<style|\sstyle=|\son[a-z]+=", text) == []


def test_files_of_others_are_as_published_and_read_no_text_as_html() -> None:
    notice = (ROOT / "NOTICE").read_text("utf-8")
    for script in (file for file in VENDORED if file.suffix != ".txt"):
        text = script.read_text("utf-8")
        assert f"sha256 {hashlib.sha256(script.read_bytes()).hexdigest()}" in notice
        assert re.findall(r"innerHTML|outerHTML|document\.|eval\(|Function\(|import\(", text) == []
