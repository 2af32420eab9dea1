"""Whose hook it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from producers.hook_events import UnclaimedHook, event_of
from producers.hook_payloads import Hook
from schemas.ports import Event
from schemas.settings import AgentSettings, Settings


def settings(tmp_path: Path, *agents: str, **more: object) -> Settings:
    return Settings(
        home=tmp_path / "home",
        agents=tuple(
            AgentSettings(id=agent, workspace=tmp_path / agent, sessions=(str(tmp_path / agent / "sessions"),), **more)  # type: ignore[arg-type]
            for agent in agents
        ),
    )


def session(tmp_path: Path, agent: str, name: str = "a.jsonl") -> str:
    return str(tmp_path / agent / "sessions" / name)


def test_the_agent_is_the_one_whose_folders_hold_the_transcript(tmp_path: Path) -> None:
    path = session(tmp_path, "two", "deep/er/b.jsonl")
    found = event_of(Hook("compaction", (path,)), settings(tmp_path, "one", "two"))
    assert found == Event("compaction", "two", (path,))


def test_a_folder_reached_through_a_link_is_the_same_folder(tmp_path: Path) -> None:
    both = settings(tmp_path, "one", "two")
    (tmp_path / "two" / "sessions").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "two")
    path = str(tmp_path / "link" / "sessions" / "a.jsonl")
    assert event_of(Hook("grew", (path,)), both).agent == "two"


def test_the_only_agent_is_meant_where_no_path_says_otherwise(tmp_path: Path) -> None:
    assert event_of(Hook("session-start"), settings(tmp_path, "one")) == Event("session-start", "one", ())
    with pytest.raises(UnclaimedHook, match="in no agent's folders"):
        event_of(Hook("changed", ("/elsewhere/a.jsonl",)), settings(tmp_path, "one"))


def test_a_session_that_starts_is_that_of_the_agent_in_whose_folders_it_lies(tmp_path: Path) -> None:
    hook = Hook("session-start", (session(tmp_path, "two"),))
    assert event_of(hook, settings(tmp_path, "one", "two")) == Event("session-start", "two", hook.paths)


def test_a_named_agent_is_meant_whatever_the_path(tmp_path: Path) -> None:
    path = session(tmp_path, "two")
    assert event_of(Hook("grew", (path,)), settings(tmp_path, "one", "two"), agent="one").agent == "one"


def test_a_session_known_by_its_id_is_looked_for_in_the_agents_folders(tmp_path: Path) -> None:
    both = settings(tmp_path, "one", "two")
    (tmp_path / "two" / "sessions").mkdir(parents=True)
    Path(session(tmp_path, "two", "s-7.jsonl")).touch()
    found = event_of(Hook("compaction", session="s-7"), both)
    assert found == Event("compaction", "two", (session(tmp_path, "two", "s-7.jsonl"),))
    assert event_of(Hook("compaction", session="s-8", agent="One"), both) == Event("reconcile", "one")


@pytest.mark.parametrize("path", ["/elsewhere/a.jsonl", "{one}/sessions-of-others/a.jsonl", "{one}/sessions"])
def test_a_session_of_nobody_is_refused_when_there_are_several_agents(tmp_path: Path, path: str) -> None:
    hook = Hook("grew", (path.format(one=tmp_path / "one"),))
    with pytest.raises(UnclaimedHook, match="--agent"):
        event_of(hook, settings(tmp_path, "one", "two"))


def test_without_agents_or_with_an_unknown_name_it_is_said_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnclaimedHook, match="recalld discover"):
        event_of(Hook("reconcile"), settings(tmp_path))
    with pytest.raises(UnclaimedHook, match="name one of one"):
        event_of(Hook("reconcile"), settings(tmp_path, "one"), agent="other")
    with pytest.raises(UnclaimedHook):
        event_of(Hook("reconcile"), settings(tmp_path, "one", enabled=False))
