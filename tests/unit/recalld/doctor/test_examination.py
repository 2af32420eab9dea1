"""Findings: of several agents together, of patterns, of messages that look alike, of what dead processes left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from memory.transcripts.packing import beginnings
from recalld.doctor.examination import pattern_findings
from recalld.doctor.finding import Finding, Level, in_common
from recalld.doctor.home import alike_condition, leftovers
from schemas.conditions import ConditionCode
from schemas.settings import Settings

REFUSED = partial(Finding, "provider", Level.PROBLEM, "the key is refused", "correct it")


def test_what_agents_have_in_common_is_told_once_and_names_them() -> None:
    other = Finding("provider", Level.PROBLEM, "no answer", "wait", agent="bob")
    fine = Finding.fine("provider", "cleo: keywords only")
    first, second, third = in_common([REFUSED(agent="ada"), other, fine, REFUSED(agent="cleo")])
    assert (first.message, first.agent, first.agents) == ("ada, cleo: the key is refused", None, ("ada", "cleo"))
    assert (second.message, second.agent, second.agents) == ("bob: no answer", "bob", ())
    assert third == fine
    assert [first.may_concern(name) for name in ("ada", "bob")] == [True, False]
    assert [third.may_concern("bob")] == [True]


def test_a_thousand_agents_are_counted_and_all_of_them_known() -> None:
    [found] = in_common(REFUSED(agent=f"a{number}") for number in range(1_000))
    assert found.message == "a0, a1, a2, a3, a4 and 995 more: the key is refused"
    assert len(found.agents) == 1_000


def test_a_slow_pattern_is_told_by_its_place_and_each_list_once(tmp_path: Path) -> None:
    def agent(name: str, *patterns: str) -> dict[str, object]:
        return {"id": name, "workspace": tmp_path, "redaction": {"patterns": patterns}}

    settings = Settings.model_validate(
        {
            "home": tmp_path,
            "agents": [
                agent("a", "x", "(?:bird)?(b+)+$"),
                agent("b", "x", "(?:bird)?(b+)+$"),
                agent("c"),
                agent("d", "x"),
            ],
        }
    )
    findings = {one.agent: one for one in pattern_findings(settings)}
    assert [one.level for one in findings.values()] == [Level.OK, Level.WARNING]
    assert findings["a"].message.startswith("pattern 2 of redaction.patterns of a takes more than 0.2 s")
    assert "bird" not in findings["a"].message


def test_more_than_a_quarter_of_messages_that_begin_alike_is_told_with_its_beginning() -> None:
    said = [f"User: question {'abcdefghij'[number % 10]} of {number}" for number in range(75)]
    machine = [f"User: [Job {number} of a program that nobody knows] run {number}" for number in range(26)]
    condition = alike_condition("main", said + machine)
    assert condition is not None
    assert (condition.code, condition.subject) == (ConditionCode.MESSAGES_ALIKE, "main")
    assert condition.params == {"beginning": "User: [Job 0 of a program that nobody kn", "percent": 26, "messages": 101}
    assert alike_condition("main", said + machine[:25]) is None
    assert alike_condition("main", ["User: hi"] * 39) is None, "a few messages are not judged"


def test_the_beginnings_of_messages_are_taken_from_chunks_and_what_chunks_repeat_counts_once() -> None:
    first = "[2026-02-03 09:00] User: one\n[2026-02-03 09:01] Assistant: two\nand more: of it"
    second = "[2026-02-03 09:01] Assistant: two\nand more: of it\n[2026-02-03 09:02] User: one"
    assert list(beginnings([first, second])) == ["User: one", "Assistant: two", "User: one"]


@pytest.fixture
def gone() -> int:
    """The number of a process that ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def write(path: Path, body: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body))
    return path


def healed(settings: Settings) -> list[str]:
    return [found.heal() for found in leftovers(settings) if found.heal is not None]


def test_files_of_processes_that_are_gone_are_removed_and_those_of_the_living_stay(settings: Settings, gone: int):
    assert [found.level for found in leftovers(settings)] == [Level.OK]
    run = settings.home / "run"
    stale = [write(run / "service.json", {"pid": gone}), write(run / "watch.json", {"main": {"pid": gone}})]
    used = write(run / "hooks.json", {"url": "http://127.0.0.1:1/", "pid": os.getpid()})
    found = list(leftovers(settings))
    assert [one.heal() for one in found if one.heal is not None] == [f"removed {path}" for path in stale]
    assert (used.exists(), [path.exists() for path in stale]) == (True, [False, False])
    write(stale[0], {"pid": os.getpid()})
    assert found[0].heal is not None
    assert found[0].heal().startswith("left"), "it is used again meanwhile"
    assert stale[0].exists()


def test_a_socket_without_a_listener_and_old_drafts_are_removed_and_the_others_stay(settings: Settings):
    path = settings.home / "broker" / "valkey.sock"
    path.parent.mkdir(parents=True)
    old = write(settings.home / "run" / ".watch.json.77", {})
    fresh = write(settings.home / "spool" / ".1.json", {})
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(os.fspath(path))
        server.listen()
        assert healed(settings) == [f"removed {old}"]
    assert healed(settings) == [f"removed {path}"]
    assert (path.exists(), old.exists(), fresh.exists()) == (False, False, True)


def test_events_that_were_set_aside_are_told_and_kept(settings: Settings):
    event = write(settings.home / "spool" / "damaged" / "1.json", {})
    [found] = leftovers(settings)
    assert (found.level, found.heal) == (Level.WARNING, None)
    assert event.exists()
