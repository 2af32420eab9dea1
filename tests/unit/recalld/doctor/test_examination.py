"""Findings: each reason for which status is not ok, what agents have in common, patterns that are tried."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from memory.status.agent import trouble_of
from recalld.doctor.examination import condition_findings, pattern_findings
from recalld.doctor.finding import Finding, Level, in_common
from schemas.conditions import Condition, ConditionCode
from schemas.settings import Settings
from schemas.status import (
    AgentStatus,
    Availability,
    BrokerState,
    CacheState,
    DiskState,
    DiskUse,
    IndexState,
    QueueState,
    Status,
    VectorState,
    Versions,
)

_FAILS = Condition(ConditionCode.PROVIDER_FAILS, "openai", 1.0, {"error": "out of order (HTTP 501)"})
_TROUBLE = trouble_of(_FAILS, now=1.0)


def status(*, ok: bool = False, **parts: Any) -> Status:
    """Of one agent."""
    works = Availability(available=True)
    whole: dict[str, Any] = {
        "disk": DiskState(files=0),
        "index": IndexState(),
        "queue": QueueState(),
        "vectors": VectorState(),
        **parts,
    }
    agent = AgentStatus(
        agent="main",
        ok=ok,
        workspace="/notes",
        provider="openai",
        requested_provider="openai",
        model="small",
        vector_search=works,
        text_search=works,
        **whole,
    )
    return Status(
        ok=ok,
        version="1",
        home="/home",
        agents=(agent,),
        cache=CacheState(enabled=False),
        broker=BrokerState(reachable=True, private=True),
        disk_use=DiskUse(),
        versions=Versions(recalld="1", python="3.11", sqlite="3.54"),
    )


def test_every_reason_is_a_problem_with_what_to_do() -> None:
    elsewhere = Finding("hooks", Level.PROBLEM, "a hook calls what is not there", "install it")
    said = [Finding.fine("index", "main: 0 documents"), elsewhere]
    [found] = condition_findings(status(troubles=(_TROUBLE,)), said)
    assert (found.level, found.agent) == (Level.PROBLEM, "main")
    assert found.condition == _FAILS
    assert found.action


def test_an_agent_that_is_ok_gives_nothing_to_say() -> None:
    assert list(condition_findings(status(ok=True), [])) == []


def test_what_a_check_covers_is_not_said_twice_unless_it_called_it_no_problem() -> None:
    told, covers = status(troubles=(_TROUBLE,)), frozenset({ConditionCode.PROVIDER_FAILS})
    assert list(condition_findings(told, [Finding("provider", Level.PROBLEM, "x", "do", "main", covers=covers)])) == []
    assert len(list(condition_findings(told, [Finding("provider", Level.WARNING, "x", "do", covers=covers)]))) == 1
    other = Finding("provider", Level.PROBLEM, "x", "do", "another", covers=covers)
    assert len(list(condition_findings(told, [other]))) == 1


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
