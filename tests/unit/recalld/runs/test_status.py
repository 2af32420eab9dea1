"""What a person reads of status."""

from __future__ import annotations

import time
from typing import Any

import click

from recalld.runs.status import amount, dollars, size, status_lines
from schemas.conditions import ConditionCode
from schemas.status import (
    AgentStatus,
    Availability,
    BrokerState,
    CacheState,
    DeadLetter,
    DiskState,
    DiskUse,
    EndpointCondition,
    EndpointStatus,
    IndexState,
    QueueState,
    SourceCount,
    Spent,
    Status,
    TroubleState,
    UsageState,
    VectorState,
    Versions,
)


def lines(*, all_agents: tuple[UsageState, ...] = (), **own: Any) -> list[str]:
    """The lines for one agent, as the service's JSON would give them."""
    works = Availability(available=True)
    parts = {"disk": DiskState(files=0), "index": IndexState(), "queue": QueueState(), "vectors": VectorState()}
    agent = AgentStatus(
        agent="main",
        ok=True,
        workspace="/notes",
        provider="openai",
        requested_provider="openai",
        vector_search=works,
        text_search=works,
        **(parts | own),
    )
    whole = Status(
        ok=True,
        version="1",
        home="/home",
        agents=(agent,),
        usage=all_agents,
        cache=CacheState(enabled=False),
        broker=BrokerState(reachable=True, private=True, server="valkey 9.0", persistence="none", warning="beware"),
        disk_use=DiskUse(indexes=2_000, models=75_600_000, free=68_500_000_000),
        versions=Versions(recalld="1", python="3.11", sqlite="3.54"),
    )
    answer: dict[str, Any] = whole.model_dump(mode="json", by_alias=True, exclude_none=True)
    return [click.unstyle(line).strip() for line in status_lines(answer)]


def test_what_differs_waits_and_failed_is_said():
    letter = {
        "source": "memory",
        "reason": "not readable",
        "error_class": "",
        "attempts": 1,
        "first_at": 0,
        "last_at": 0,
    }
    shown = lines(
        disk=DiskState(files=3, missing=1),
        index=IndexState(files=2, chunks=9, vectors_ready=5, vectors_pending=4, disk_bytes=2_000_000),
        queue=QueueState(pending=1, oldest_seconds=95.0),
        vectors=VectorState(rate=2.0, eta_seconds=2.0, advice="an endpoint is faster"),
        dead_letters=tuple(DeadLetter(path=f"{number}.md", **letter) for number in range(7)),
    )
    assert shown[:2] == ["main: ok  /notes", "provider      openai"]
    for line in (
        "files         3 on disk, 2 indexed, 1 missing",
        "index         9 chunks, 2.0 MB",
        "queue         1 document waiting, 0 running, the oldest for 1 min 35 s",
        "vectors       5 of 9 ready, 2.0 a second, 2 s left; an endpoint is faster",
        "failed        4.md: not readable",
        "failed        and 2 more (`recalld dead list`)",
        "mend and save it, or `recalld dead retry PATH`; `recalld dead drop PATH` forgets it",
    ):
        assert line in shown


def test_what_was_spent_is_one_short_line_a_model():
    spent = UsageState(
        provider="openai",
        model="text-embedding-3-small",
        total=Spent(requests=68, tokens=5_030_000, dollars=0.1006),
        today=Spent(requests=12, tokens=812_345, dollars=0.016),
    )
    expected = "openai text-embedding-3-small: 68 requests, 5.0 M tokens, about $0.10 (today 12, 812.3 k)"
    assert f"spent         {expected}" in lines(usage=(spent,))
    assert f"spent by all  {expected}" in lines(all_agents=(spent,))


def test_failures_are_said_and_an_unknown_price_is_not_guessed():
    spent = UsageState(
        provider="openai", model="own-model", total=Spent(requests=1, failed=1), today=Spent(requests=1, failed=1)
    )
    assert "spent         openai own-model: 1 request (1 failed), 0 tokens (today 1, 0)" in lines(usage=(spent,))


def test_a_model_on_this_machine_spends_nothing():
    used = UsageState(provider="local", model="m", total=Spent(requests=9, dollars=0.0), today=Spent())
    assert not any(line.startswith("spent") for line in lines(usage=(used,)))


def test_an_endpoint_is_mentioned_when_it_is_not_well():
    def line(condition: EndpointCondition, *, reason: str | None = None, seconds: float | None = None) -> list[str]:
        until = None if seconds is None else time.time() + seconds + 0.4
        shown = lines(endpoint=EndpointStatus(condition=condition, until=until, reason=reason))
        return [text for text in shown if text.startswith("endpoint")]

    assert line(EndpointCondition.OK) == []
    assert line(EndpointCondition.COOLING_DOWN, seconds=12) == ["endpoint      cooling down; next try in 12 s"]
    assert line(EndpointCondition.FAILING) == ["endpoint      failing"]
    waiting = EndpointStatus(
        condition=EndpointCondition.WAITING, reason="openai has not answered a request", since=time.time() - 13.2
    )
    assert "endpoint      waiting: openai has not answered a request for 13 s" in lines(endpoint=waiting)
    assert line(EndpointCondition.STOPPED, reason="the key is refused: set OPENAI_API_KEY", seconds=40) == [
        "endpoint      stopped: the key is refused: set OPENAI_API_KEY; next try in 40 s"
    ]


def test_numbers_for_people():
    sizes = {0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_960: "1.0 MB", 68_500_000_000: "68.5 GB"}
    assert {number: size(number) for number in sizes} == sizes
    amounts = {0: "0", 999: "999", 1000: "1.0 k", 999_949: "999.9 k", 999_951: "1.0 M"}
    assert {number: amount(number) for number in amounts} == amounts
    assert [dollars(1234.5), dollars(0.011), dollars(0.0004)] == ["about $1,234.50", "about $0.01", "less than $0.01"]


def test_how_long_a_trouble_lasts_is_said_where_it_is_known():
    now = time.time()
    troubles = (
        TroubleState(code=ConditionCode.FILE_IS_LINK, part="files", message="odd", since=now),
        TroubleState(code=ConditionCode.JOB_FAILED, part="a", message="b", since=now - 95),
    )
    shown = [line for line in lines(troubles=troubles) if line.startswith("trouble")]
    assert shown[0] == "trouble       files: odd"
    assert shown[1].startswith("trouble       a: b (for 1 min 3")


def test_what_all_agents_share_is_told_at_the_end():
    told = lines()
    assert "broker        valkey 9.0 (private), kept on disk: none; beware" in told
    assert "disk          indexes 2.0 kB, cache 0 B, models 75.6 MB, broker 0 B, log 0 B; 68.5 GB free" in told
    assert "versions      recalld 1, Python 3.11, SQLite 3.54" in told


def test_no_text_in_it_commands_the_terminal_or_forges_a_line():
    reason = "a name\x07\x1b[2J\nmain: ok"
    shown = lines(endpoint=EndpointStatus(condition=EndpointCondition.STOPPED, until=None, reason=reason))
    assert "endpoint      stopped: a name\\x07\\x1b[2J\\nmain: ok" in shown


def test_what_is_indexed_is_said_by_source():
    counts = (SourceCount(source="memory", files=12, chunks=40), SourceCount(source="sessions", files=1, chunks=1))

    shown = lines(index=IndexState(files=13, chunks=41, source_counts=counts))

    assert any(line.endswith("memory 12 files, 40 chunks; sessions 1 file, 1 chunk") for line in shown)
    assert not any("sources" in line for line in lines())
