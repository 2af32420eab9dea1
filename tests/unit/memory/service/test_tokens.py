"""One token per agent."""

from __future__ import annotations

from pathlib import Path

from memory.service.tokens import agent_of, ensure_tokens, read_tokens


def test_every_agent_gets_its_own_token_that_nobody_else_can_read(tmp_path: Path):
    tokens = ensure_tokens(tmp_path, ["ada", "bob"])

    assert len(set(tokens.values())) == 2
    assert all(len(token) >= 40 for token in tokens.values())
    folder = tmp_path / "run" / "tokens"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {(folder / agent).stat().st_mode & 0o777 for agent in tokens} == {0o600}
    assert sorted(entry.name for entry in folder.iterdir()) == ["ada", "bob"]


def test_tokens_stay_and_only_missing_ones_are_made(tmp_path: Path):
    first = ensure_tokens(tmp_path, ["ada"])
    second = ensure_tokens(tmp_path, ["ada", "bob"])

    assert second["ada"] == first["ada"]
    assert read_tokens(tmp_path, ["ada", "bob", "eve"]) == second


def test_an_empty_file_is_no_token(tmp_path: Path):
    folder = tmp_path / "run" / "tokens"
    folder.mkdir(parents=True)
    (folder / "ada").write_text("\n")

    assert read_tokens(tmp_path, ["ada"]) == {}
    assert ensure_tokens(tmp_path, ["ada"])["ada"]
    assert (folder / "ada").stat().st_mode & 0o777 == 0o600


def test_a_token_names_its_owner():
    tokens = {"ada": "secret-a", "bob": "secret-b"}

    assert agent_of("secret-b", tokens) == "bob"
    assert agent_of("secret", tokens) is None
    assert agent_of("", tokens) is None
    assert agent_of("sécret-b", tokens) is None
