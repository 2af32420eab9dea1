"""Each reason for which status is not ok becomes a problem, unless another check has said it."""

from __future__ import annotations

from typing import Any

import pytest

from recalld.doctor.agreeing import agreeing_findings
from recalld.doctor.finding import Finding, Level
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
    TroubleState,
    VectorState,
    Versions,
)

_TROUBLE = TroubleState(part="provider openai", message="out of order (HTTP 501)", since=1.0)


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


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"troubles": (_TROUBLE,)}, "out of order"),
        ({"troubles": (TroubleState(part="of its own", message="it creaks", since=1.0),)}, "it creaks"),
        (
            {"queue": QueueState(pending=3, oldest_seconds=95.0)},
            "3 documents wait, the oldest for 1 min 35 s",
        ),
        ({"index": IndexState(identity_matches=False)}, "made with other settings"),
        ({"index": IndexState(vectors_pending=1)}, "1 vector waits, and none comes in"),
        (
            {"index": IndexState(vectors_pending=2), "queue": QueueState(reachable=False)},
            "2 vectors wait, and nothing runs",
        ),
        ({}, "status is not ok"),
    ],
)
def test_every_reason_is_a_problem_with_what_to_do(parts: dict[str, Any], said: str) -> None:
    elsewhere = Finding("hooks", Level.PROBLEM, "a hook calls what is not there", "install it")
    [found] = agreeing_findings(status(**parts), [Finding.fine("index", "main: 0 documents"), elsewhere])
    assert (found.level, found.agent) == (Level.PROBLEM, "main")
    assert said in found.message
    assert found.action


def test_an_agent_that_is_ok_gives_nothing_to_say() -> None:
    assert list(agreeing_findings(status(ok=True), [])) == []


@pytest.mark.parametrize(
    "other",
    [
        Finding("provider", Level.PROBLEM, "openai is stopped: out of order (HTTP 501)", "correct the key"),
        Finding("provider", Level.PROBLEM, "refused", "correct it", "main", speaks_for=frozenset({"provider openai"})),
    ],
)
def test_what_another_check_has_said_is_not_said_twice_unless_it_called_it_no_problem(other: Finding) -> None:
    told = status(troubles=(_TROUBLE,))
    assert list(agreeing_findings(told, [other])) == []
    mild = Finding("provider", Level.WARNING, other.message, other.action, speaks_for=other.speaks_for)
    assert len(list(agreeing_findings(told, [mild]))) == 1
    assert len(list(agreeing_findings(told, [Finding("x", Level.PROBLEM, other.message, "do", "another")]))) == 1
