"""Text of status for a person."""

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
    BackendStatus,
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


LETTER = {"source": "memory", "reason": "not readable", "error_class": "", "attempts": 1, "first_at": 0, "last_at": 0}
LETTERS = tuple(DeadLetter(path=f"{number}.md", **LETTER) for number in range(7))
SOURCES = (SourceCount(source="memory", files=12, chunks=40), SourceCount(source="sessions", files=1, chunks=1))
NOW, LATER = time.time(), time.time() + 3600
TODAY = Spent(requests=12, tokens=812_345)
SPENT = UsageState(provider="openai", model="m", total=Spent(requests=68, tokens=5_030_000, dollars=0.1), today=TODAY)
FREE = UsageState(provider="local", model="m", total=Spent(requests=9, dollars=0.0), today=Spent())


@pytest.mark.parametrize(
    ("own", "shown"),
    [
        ({}, ["main: ok  /notes", "provider      openai", "queue         empty"]),
        ({"disk": DiskState(files=3, missing=1)}, ["files         3 on disk, 0 indexed, 1 missing"]),
        ({"disk": DiskState(files=3, left_out=2)}, ["files         3 on disk, 0 indexed, 2 left out"]),
        (
            {"index": IndexState(chunks=9, vectors_ready=5, vectors_pending=4, disk_bytes=2_000_000)},
            ["index         9 chunks, 2.0 MB", "vectors       5 of 9 ready"],
        ),
        (
            {"index": IndexState(files=13, source_counts=SOURCES)},
            ["sources       memory 12 files, 40 chunks; sessions 1 file, 1 chunk"],
        ),
        (
            {"queue": QueueState(pending=1, oldest_seconds=95.0)},
            ["queue         1 document waiting, 0 running, the oldest for 1 min 35 s"],
        ),
        (
            {
                "index": IndexState(vectors_ready=5, vectors_pending=4),
                "vectors": VectorState(rate=2.0, eta_seconds=2.0, advice="an endpoint is faster"),
            },
            ["vectors       5 of 9 ready, 2.0 a second, 2 s left; an endpoint is faster"],
        ),
        (
            {"index": IndexState(vectors_ready=9), "vectors": VectorState(sentences_ready=4, sentences_wanted=9)},
            ["vectors       9 of 9 ready, sentences of 4 chunks ready"],
        ),
        (
            {"dead_letters": LETTERS},
            [
                "failed        4.md: not readable",
                "failed        and 2 more (`recalld dead list`)",
                "mend and save it, or `recalld dead retry PATH`; `recalld dead drop PATH` forgets it",
            ],
        ),
        (
            {"usage": (SPENT, FREE)},
            ["spent         openai m: 68 requests, 5.0 M tokens, about $0.10 (today 12, 812.3 k)"],
        ),
        (
            {"all_agents": (SPENT,)},
            ["spent by all  openai m: 68 requests, 5.0 M tokens, about $0.10 (today 12, 812.3 k)"],
        ),
        (
            {"endpoint": EndpointStatus(EndpointCondition.COOLING_DOWN, LATER)},
            ["endpoint      cooling down; next try in "],
        ),
        (
            {"endpoint": EndpointStatus(EndpointCondition.WAITING, None, "openai has not answered", NOW - 3600)},
            ["endpoint      waiting: openai has not answered for "],
        ),
        (
            {"endpoint": EndpointStatus(EndpointCondition.STOPPED, None, "a name\x07\x1b[2J\nmain: ok")},
            ["endpoint      stopped: a name\\x07\\x1b[2J\\nmain: ok"],
        ),
        (
            {"backend": BackendStatus(backend="builtin", fallback_from="qmd", problem="it is not installed")},
            ["backend       builtin instead of qmd: it is not installed"],
        ),
        ({"backend": BackendStatus(backend="qmd", files=3)}, ["backend       qmd, 3 files"]),
        (
            {"troubles": (TroubleState(code=ConditionCode.JOB_FAILED, part="a", message="b", since=NOW - 95),)},
            ["trouble       a: b (for "],
        ),
        (
            {},
            [
                "broker        valkey 9.0 (private), kept on disk: none; beware",
                "disk          indexes 2.0 kB, cache 0 B, models 75.6 MB, broker 0 B, log 0 B, free 68.5 GB",
                "versions      recalld 1, Python 3.11, SQLite 3.54",
            ],
        ),
    ],
)
def test_each_fact_is_one_line(own: dict[str, Any], shown: list[str]):
    told = lines(**own)
    for line in shown:
        assert any(one.startswith(line) for one in told), told


@pytest.mark.parametrize(
    ("own", "name"),
    [({"usage": (FREE,)}, "spent"), ({"endpoint": EndpointStatus(EndpointCondition.OK, None)}, "endpoint")],
)
def test_what_costs_nothing_or_is_well_is_not_mentioned(own: dict[str, Any], name: str):
    assert not any(line.startswith(name) for line in lines(**own))


def test_numbers_for_people():
    sizes = {0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_960: "1.0 MB", 68_500_000_000: "68.5 GB"}
    assert {number: size(number) for number in sizes} == sizes
    amounts = {0: "0", 999: "999", 1000: "1.0 k", 999_949: "999.9 k", 999_951: "1.0 M"}
    assert {number: amount(number) for number in amounts} == amounts
    assert [dollars(1234.5), dollars(0.011), dollars(0.0004)] == ["about $1,234.50", "about $0.01", "less than $0.01"]


def test_deleted_chunks_are_counted_until_they_are_overwritten() -> None:
    index = IndexState(chunks=7, deleted_on_disk=3, deleted_since=time.time() - 600)
    assert any("3 deleted chunks" in line and "10 min" in line for line in lines(index=index))
    assert not any("overwrite" in line for line in lines(index=IndexState(chunks=7)))
