"""A process knows whether it would read the same settings again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recalld.invocation import Invocation
from recalld.settings.load import remember_workspace
from recalld.up.lifecycle import SettingsAge

TEXT = 'provider = "stub"\n[chunking]\ntokens = 300\n'


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith(("RECALLD_", "OPENAI_")):
            monkeypatch.delenv(name)
    file = tmp_path / "recalld.toml"
    file.write_text(TEXT)
    return file


@pytest.fixture
def invocation(config: Path, tmp_path: Path) -> Invocation:
    (tmp_path / "workspace").mkdir()
    return Invocation(
        config=str(config), home=str(tmp_path / "home"), workspace=str(tmp_path / "workspace"), agent="main"
    )


@pytest.mark.parametrize(
    "text",
    [
        f"# a comment\n{TEXT}",
        'provider="stub"\n\n\nchunking = { tokens = 300 }\n',
        f"{TEXT}overlap = 80\n",  # the default, said aloud
        f"{TEXT}\n[service]\nport = 9999\n",  # which a flag overrides anyway
    ],
)
def test_what_makes_no_difference_is_no_change(invocation: Invocation, config: Path, text: str):
    invocation.overrides["service.port"] = 7000
    age = SettingsAge(invocation)
    config.write_text(text)
    assert age() is None


def test_a_change_is_told_with_both_times_until_it_is_taken_back(invocation: Invocation, config: Path):
    age = SettingsAge(invocation)
    assert age() is None
    config.write_text(TEXT.replace("300", "200"))
    os.utime(config, (5000.0, 5000.0))
    outdated = age()
    assert outdated is not None
    assert (outdated.file, outdated.changed_at, outdated.invalid) == (str(config), 5000.0, False)
    assert outdated.read_at > 5000.0
    assert age() == outdated
    config.write_text(TEXT)
    assert age() is None
    for spoil in (lambda: config.write_text("chunking = 3\n"), config.unlink):
        spoil()
        assert (outdated := age()) is not None
        assert outdated.invalid


def test_a_key_file_that_was_replaced_is_a_change(
    invocation: Invocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    key = tmp_path / "key"
    key.write_text("sk-old")
    monkeypatch.setenv("OPENAI_API_KEY_FILE", str(key))
    age = SettingsAge(invocation)
    key.write_text("sk-newer")
    outdated = age()
    assert outdated is not None
    assert outdated.file == str(key)


def test_a_workspace_that_another_command_remembered_is_a_change_for_who_lives_by_that(
    config: Path, invocation: Invocation, tmp_path: Path
):
    remember_workspace(invocation.home_path, "main", tmp_path / "workspace")
    by_memory = SettingsAge(Invocation(config=str(config), home=str(tmp_path / "home")))
    by_flag = SettingsAge(invocation)
    (tmp_path / "other place").mkdir()
    remember_workspace(invocation.home_path, "main", tmp_path / "other place")
    assert by_memory() is not None
    assert by_flag() is None
