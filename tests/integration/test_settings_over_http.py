"""Settings of searches, scopes and contexts with two values each, as clients of the service see them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from recalld.settings.keys import nested
from schemas.settings import Settings
from tests.serving import running, search
from tests.transcript_files import message_line
from tests.unit.memory.backends.test_qmd import StandIn
from tests.waiting import wait_until
from tests.written_index import with_agent, write_index

DIRECT = "agent:main:telegram:direct:7"
SESSION = "sessions/of-the-owner.jsonl"
TODAY, LONG_AGO = f"memory/{datetime.now(UTC):%Y-%m-%d}.md", "memory/2020-01-01.md"
NOTES = {
    "MEMORY.md": "The owner likes tea. " * 20,
    "USER.md": "The owner is called Ada. " * 20,
    LONG_AGO: "The gateway listens on port 7171. The gateway is the port of all.\n",
    "memory/2020-01-02.md": "The gateway listens on port 7171. The gateway is the port of everything.\n",
    **{f"memory/2019-01-{day}.md": f"The gateway of day {day} listens on port 7171.\n" for day in range(11, 23)},
    TODAY: "Among other things that were said on this long day, the gateway has a port.\n",
}


def paths(query: str = "gateway port", **request: object) -> Callable[[httpx.Client], object]:
    return lambda client: [result["path"] for result in search(client, query, minScore=0, **request)["results"]]


def side(client: httpx.Client) -> object:
    """Return the side whose score the first result has."""
    best = search(client, "gateway port", minScore=0)["results"][0]
    return next((name for name in ("vectorScore", "textScore") if abs(best["score"] - best[name]) < 1e-6), None)


def characters(client: httpx.Client) -> object:
    call = {"name": "memory_search", "arguments": {"query": "gateway port"}}
    return sum(len(result["snippet"]) for result in client.post("/v1/tools", json=call).json()["results"]) <= 50


def longest(client: httpx.Client) -> object:
    return max(len(result["snippet"]) for result in search(client, "owner tea", minScore=0)["results"]) <= 40


def transcript(client: httpx.Client) -> object:
    return client.post("/v1/get", json={"path": SESSION, "sessionKey": DIRECT}).json()["status"]


def flush(**request: object) -> Callable[[httpx.Client], object]:
    body = {"windowTokens": 100_000, **request}
    return lambda client: client.post("/v1/context/flush", json=body).json()["due"]


def shown(*names: str) -> Callable[[httpx.Client], object]:
    """Return a look at how many characters of these files a session begins with."""

    def look(client: httpx.Client) -> object:
        of_all = {file["path"]: file["shown"] for file in client.get("/v1/context").json()["files"]}
        return sum(of_all[name] for name in names or of_all)

    return look


def pruned(client: httpx.Client) -> object:
    """Return the lengths of the parts that are left of a tool's second result, 60 seconds after the last call."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for number in range(6):
        call = {"id": str(number), "type": "function", "function": {"name": "read", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": str(number), "content": f"{number}" * 10_000})
    body = {"messages": messages, "windowTokens": 20_000, "touchedAt": 1_000.0, "now": 1_060.0}
    answer = client.post("/v1/context/prune", json=body)
    assert answer.status_code == 200, answer.text
    lines = answer.json()["messages"][4]["content"].splitlines()
    return [len(line) for line in lines if set(line) == {"1"}]


@dataclass(frozen=True)
class Case:
    """A `look` at the service, its two sights with both values of the setting, and settings that both have."""

    look: Callable[[httpx.Client], object]
    values: tuple[object, object]
    sights: tuple[object, object]
    also: dict[str, object] = field(default_factory=dict)


WEIGHTED = {"query.hybrid.fusion": "weighted"}
DECAYS = WEIGHTED | {"query.hybrid.temporal_decay.enabled": True, "query.hybrid.temporal_decay.half_life_days": 1}
VARIES = {"query.hybrid.mmr.enabled": True}
PRUNES = {"context.pruning.mode": "cache-ttl", "context.pruning.ttl_minutes": 0.5}
TRIMS = PRUNES | {"context.pruning.hard_clear.enabled": False}
CLEARS = PRUNES | {"context.pruning.min_prunable_tool_chars": 0, "context.pruning.hard_clear_ratio": 0}
DENY = {"action": "deny", "raw_key_prefix": "agent:main:telegram"}
OTHER = {"action": "deny", "raw_key_prefix": "agent:main:slack"}


CASES = {
    "query.hybrid.vector_weight": Case(
        side, (0, 1), ("textScore", "vectorScore"), WEIGHTED | {"query.hybrid.text_weight": 1e-9}
    ),
    "query.hybrid.text_weight": Case(
        side, (1, 0), ("textScore", "vectorScore"), WEIGHTED | {"query.hybrid.vector_weight": 1e-9}
    ),
    "query.hybrid.candidate_multiplier": Case(
        paths(NOTES[LONG_AGO], maxResults=1), (1, 20), (["memory/2019-01-22.md"], [TODAY]), DECAYS
    ),
    "query.hybrid.mmr.lambda": Case(
        paths(maxResults=2), (1, 0), ([LONG_AGO, "memory/2020-01-02.md"], [LONG_AGO, "memory/2019-01-22.md"]), VARIES
    ),
    "limits.max_snippet_chars": Case(longest, (40, 700), (True, False)),
    "limits.max_injected_chars": Case(characters, (50, 4_000), (True, False)),
    "scope.rules": Case(paths(sessionKey=DIRECT, maxResults=1), ([DENY], [OTHER]), ([], [LONG_AGO])),
    "scope.private_transcripts": Case(transcript, ("owner", "direct"), ("not_found", "ok")),
    "context.flush.reserve_tokens": Case(
        flush(tokens=85_000), (10_000, 20_000), (False, True), {"context.flush.soft_threshold_tokens": 0}
    ),
    "context.flush.soft_threshold_tokens": Case(
        flush(tokens=85_000), (10_000, 20_000), (False, True), {"context.flush.reserve_tokens": 0}
    ),
    "context.flush.transcript_bytes": Case(flush(transcriptBytes=5_000), (10_000, 4_000), (False, True)),
    "context.pruning.ttl_minutes": Case(pruned, (2, 0.5), ([10_000], []), CLEARS),
    "context.pruning.hard_clear_ratio": Case(pruned, (1, 0), ([1_500, 1_500], []), CLEARS),
    "context.pruning.min_prunable_tool_chars": Case(pruned, (10**9, 0), ([1_500, 1_500], []), CLEARS),
    "context.pruning.soft_trim.head_chars": Case(pruned, (100, 200), ([100, 1_500], [200, 1_500]), TRIMS),
    "context.pruning.soft_trim.tail_chars": Case(pruned, (100, 200), ([1_500, 100], [1_500, 200]), TRIMS),
    "context.bootstrap.user_max_chars": Case(shown("USER.md"), (300, 10_000), (300, 499)),
    "context.bootstrap.total_max_chars": Case(shown(), (600, 10_000), (600, 918)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_setting_changes_what_a_client_gets(settings: Settings, workspace: Path, tmp_path: Path, name: str) -> None:
    for path, text in NOTES.items():
        (workspace / path).write_text(text, "utf-8")
    (tmp_path / "sessions").mkdir()
    (tmp_path / SESSION).write_bytes(message_line("openclaw", "user", "The heron of the owner."))
    case, seen = CASES[name], []
    for value in case.values:
        changed = with_agent(settings, **nested({**case.also, name: value}))
        write_index(changed).close()
        with_session = with_agent(changed, sessions=[str(tmp_path / "sessions")], sources=["memory", "sessions"])
        with running(with_session) as client:
            wait_until(lambda: search(client, "warm")["mode"] == "hybrid")
            seen.append(case.look(client))
    assert seen == list(case.sights), seen


def served_by_qmd(settings: Settings, qmd: StandIn, **changes: object) -> Settings:
    limits = {"timeout_ms": 60_000}
    section = nested({"command": qmd.command, "search_mode": "vsearch", "limits": limits, **changes})
    return with_agent(settings, backend="qmd", qmd=section, limits={"timeout_ms": 600_000})


@pytest.mark.long
@pytest.mark.usefixtures("notes")
def test_qmd_does_as_its_settings_say(settings: Settings, tmp_path: Path) -> None:
    qmd = StandIn(tmp_path / "stand-in")
    hit = {"file": "qmd://memory-dir-main/friday.md", "line": 1, "score": 0.9, "snippet": "The dentist, " * 20}
    qmd.does(vsearch=f"print({json.dumps([hit])!r})")
    shown: list[int] = []
    for changes in (
        {"update.embed_interval_minutes": 1e-4, "limits.max_injected_chars": 60},
        {"update.on_boot": False, "limits.max_snippet_chars": 100},
    ):
        (qmd.folder / "asked").unlink(missing_ok=True)
        with running(served_by_qmd(settings, qmd, **changes)) as client:
            least = 1 if "update.on_boot" in changes else 2
            wait_until(lambda least=least: len(qmd.asked("embed")) >= least)  # type: ignore[misc]
            assert bool(qmd.asked("update")) is ("update.on_boot" not in changes)
            [result] = search(client, "dentist", waitMs=0)["results"]
            shown.append(len(result["snippet"]))
    assert shown[0] <= 60 < shown[1] <= 100
    for word, name in (("embed", "embed_timeout_seconds"), ("update", "timeout_seconds")):
        qmd.does(**{word: "time.sleep(600)"})
        with running(served_by_qmd(settings, qmd, **{f"update.{name}": 0.05})) as client:

            def problem() -> str:
                backend = client.get("/v1/status", headers={"cache-control": "no-cache"}).json()["agents"][0]["backend"]
                return str(backend.get("problem"))

            wait_until(lambda word=word: problem() == f"{qmd.command} {word} timed out")  # type: ignore[misc]


@pytest.mark.long
@pytest.mark.parametrize(("days", "exported"), [(None, {"old", "new"}), (1, {"new"})])
def test_qmd_gets_transcripts_of_the_last_days(
    settings: Settings, tmp_path: Path, days: int | None, exported: set[str]
) -> None:
    qmd = StandIn(tmp_path / "stand-in")
    for name, age in (("old", 200_000), ("new", 0)):
        talk = tmp_path / "talks" / f"{name}.jsonl"
        talk.parent.mkdir(exist_ok=True)
        talk.write_bytes(message_line("openclaw", "user", "heron"))
        os.utime(talk, (time.time() - age,) * 2)
    served = served_by_qmd(settings, qmd, **{"sessions.retention_days": days})
    with running(with_agent(served, sessions=[str(tmp_path / "talks")], sources=["memory", "sessions"])):
        wait_until(lambda: qmd.asked("status"))
    exports = served.home / "qmd" / "main" / "sessions"
    assert {path.name.partition(".")[0] for path in exports.iterdir()} == exported
