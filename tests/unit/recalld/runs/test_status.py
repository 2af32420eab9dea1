"""What a person reads of status."""

from __future__ import annotations

import time
from typing import Any

import click
import pytest

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


@pytest.mark.parametrize(
    ("model", "total", "today", "line"),
    [
        (
            "text-embedding-3-small",
            Spent(requests=68, tokens=5_030_000, dollars=0.1006),
            Spent(requests=12, tokens=812_345, dollars=0.016),
            "68 requests, 5.0 M tokens, about $0.10 (today 12, 812.3 k)",
        ),
        (
            "own",
            Spent(requests=1, failed=1),
            Spent(requests=1, failed=1),
            "1 request (1 failed), 0 tokens (today 1, 0)",
        ),
    ],
)
def test_what_was_spent_is_one_short_line_a_model(model: str, total: Spent, today: Spent, line: str):
    spent = UsageState(provider="openai", model=model, total=total, today=today)
    assert f"spent         openai {model}: {line}" in lines(usage=(spent,))
    assert f"spent by all  openai {model}: {line}" in lines(all_agents=(spent,))
    free = UsageState(provider="local", model="m", total=Spent(requests=9, dollars=0.0), today=Spent())
    assert not any(text.startswith("spent") for text in lines(usage=(free,)))


@pytest.mark.parametrize(
    ("endpoint", "line"),
    [
        (EndpointStatus(EndpointCondition.OK, None), None),
        (EndpointStatus(EndpointCondition.COOLING_DOWN, time.time() + 3600), "cooling down; next try in "),
        (EndpointStatus(EndpointCondition.FAILING, None), "failing"),
        (
            EndpointStatus(EndpointCondition.WAITING, None, "openai has not answered", time.time() - 3600),
            "waiting: openai has not answered for ",
        ),
        (
            EndpointStatus(EndpointCondition.STOPPED, time.time() + 3600, "the key is refused: set OPENAI_API_KEY"),
            "stopped: the key is refused: set OPENAI_API_KEY; next try in ",
        ),
    ],
)
def test_an_endpoint_is_mentioned_when_it_is_not_well(endpoint: EndpointStatus, line: str | None):
    shown = [text for text in lines(endpoint=endpoint) if text.startswith("endpoint")]
    assert len(shown) == (line is not None)
    assert line is None or shown[0].startswith(f"endpoint      {line}")


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


def test_what_is_indexed_is_said_by_source_and_what_all_agents_share_at_the_end():
    counts = (SourceCount(source="memory", files=12, chunks=40), SourceCount(source="sessions", files=1, chunks=1))
    told = lines(index=IndexState(files=13, chunks=41, source_counts=counts))
    for line in (
        "sources       memory 12 files, 40 chunks; sessions 1 file, 1 chunk",
        "broker        valkey 9.0 (private), kept on disk: none; beware",
        "disk          indexes 2.0 kB, cache 0 B, models 75.6 MB, broker 0 B, log 0 B; 68.5 GB free",
        "versions      recalld 1, Python 3.11, SQLite 3.54",
    ):
        assert line in told
    assert not any("sources" in line for line in lines())


def test_no_text_in_it_commands_the_terminal_or_forges_a_line():
    reason = "a name\x07\x1b[2J\nmain: ok"
    shown = lines(endpoint=EndpointStatus(condition=EndpointCondition.STOPPED, until=None, reason=reason))
    assert "endpoint      stopped: a name\\x07\\x1b[2J\\nmain: ok" in shown
