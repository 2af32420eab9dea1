"""Results that differ, and old memory that sinks, through the manager over a real index."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from memory.store.writer import Store
from schemas.documents import DocumentKey
from schemas.search import SearchAnswer, SearchRequest
from schemas.settings import Settings
from tests.storing import chunk, piece, position
from tests.written_index import searching, with_agent, write_index

MMR = {"mmr": {"enabled": True, "lambda": 0.5}}
DECAY = {"temporal_decay": {"enabled": True, "half_life_days": 30}}

#: Three notes that say the same, one that says another thing about it, and two that are hardly about it.
SAME_AGAIN = {
    "memory/standup.md": "数据库迁移定在周五晚上九点，由小王负责。\n",
    "memory/chat.md": "数据库迁移定在周五晚上九点，由小王负责！\n",
    "memory/mail.md": "数据库迁移，定在周五晚上九点，由小王负责。\n",
    "memory/rollback.md": "如果数据库迁移失败，就用周四的备份恢复，先通知客户。\n",
    "memory/dentist.md": "周五的牙医预约改到早上，记得带保险卡。\n",
    "memory/garden.md": "阳台上的番茄和罗勒每天都要浇水，周五除外。\n",
}

#: Words that most notes have in common say nothing; with these, those of the four are rare.
OTHERS = {f"memory/garden-{row}.md": f"第{row}行的番茄和罗勒每天早上浇水。\n" for row in range(20)}


def notes(workspace: Path, texts: Mapping[str, str]) -> None:
    for path, text in texts.items():
        (workspace / path).write_text(text, "utf-8")


def dated(days_ago: int, slug: str = "") -> str:
    return f"memory/{date.today() - timedelta(days=days_ago)}{slug}.md"  # as a person dates a note


def searched(settings: Settings, query: str, hybrid: Mapping[str, Any], **options: Any) -> SearchAnswer:
    """One search of the only agent with these settings of `query.hybrid`."""
    with searching(with_agent(settings, query={"hybrid": hybrid})) as manager:
        answer = manager.search(SearchRequest(query=query, **options))
    assert answer.error is None
    assert answer.degraded == ()
    return answer


def paths(answer: SearchAnswer) -> list[str]:
    return [result.path for result in answer.results]


@pytest.mark.parametrize("fusion", ["minmax", "weighted"])
@pytest.mark.parametrize("vectors", [True, False], ids=["by vectors", "by words"])
def test_what_differs_comes_before_what_repeats(
    settings: Settings, workspace: Path, fusion: str, *, vectors: bool
) -> None:
    notes(workspace, SAME_AGAIN | OTHERS)
    write_index(settings, vectors=vectors).close()
    query = "数据库迁移定在周五"

    plain = searched(settings, query, {"fusion": fusion}, max_results=6, min_score=0)
    mixed = searched(settings, query, {"fusion": fusion, **MMR}, max_results=6, min_score=0)
    alone = searched(
        settings, query, {"fusion": fusion, "mmr": {"enabled": True, "lambda": 1}}, max_results=6, min_score=0
    )

    assert paths(plain)[3] == "memory/rollback.md"
    assert paths(mixed)[0] == paths(plain)[0]
    # By vectors every note is a candidate, and what is hardly about it differs most.
    assert "memory/rollback.md" in paths(mixed)[1 : 3 if vectors else 2]
    assert mixed.results[paths(mixed).index("memory/rollback.md")].score == plain.results[3].score
    assert alone.results == plain.results


def test_an_old_note_sinks_below_a_new_one_and_evergreens_stay(settings: Settings, workspace: Path) -> None:
    old, new = dated(90, "-迁移"), dated(0)
    # The same text would be one result.
    texts = [f"我们决定周五迁移数据库{end}\n" for end in "。！？；…"]
    notes(workspace, dict(zip((old, new, "memory/database.md", "MEMORY.md", dated(-5)), texts, strict=True)))
    write_index(settings).close()

    plain = {result.path: result.score for result in searched(settings, "什么时候迁移数据库", {}).results}
    answer = searched(settings, "什么时候迁移数据库", DECAY)

    assert paths(answer)[-1] == old
    aged = {result.path: result.score for result in answer.results}
    assert aged.keys() == plain.keys()
    assert aged[old] == pytest.approx(plain[old] / 8, abs=1e-3)
    assert {path: score for path, score in aged.items() if path != old} == {
        path: score for path, score in plain.items() if path != old
    }


def test_a_copy_that_does_not_age_keeps_its_text_young(settings: Settings, workspace: Path) -> None:
    text = "我们决定周五迁移数据库。\n"
    notes(workspace, {"memory/database.md": text, dated(90): text, "memory/garden.md": "番茄每天浇水。\n"})
    os.utime(workspace / "memory/database.md", (1, 1))
    write_index(settings).close()

    plain, aged = (searched(settings, "什么时候迁移数据库", hybrid).results[0] for hybrid in ({}, DECAY))
    assert plain.path == aged.path == dated(90), "it is the newest file"
    assert aged.score == plain.score


def test_age_alone_loses_nothing_to_min_score(settings: Settings, workspace: Path) -> None:
    notes(workspace, {dated(3000): "The dentist appointment moved to Friday.\n", "memory/b.md": "Basil and thyme.\n"})
    write_index(settings).close()

    for query in ("dentist appointment", "dentists appointments"):
        answer = searched(settings, query, DECAY, min_score=0.3)
        assert dated(3000) in paths(answer)
        assert answer.results[-1].score < 0.3


def said(store: Store, path: str, text: str, *, days_ago: float) -> None:
    said_at = time.time() - days_ago * 86_400
    write = piece(
        replace(chunk(text), said_at=said_at), continues=None, to=position(1), of=DocumentKey("sessions", path)
    )
    store.write([write])


def test_talk_is_as_old_as_its_messages(settings: Settings) -> None:
    store = write_index(settings)
    said(store, "sessions/a.jsonl", "The server is called Basalt.", days_ago=60)
    said(store, "sessions/b.jsonl", "The server is called Basalt!", days_ago=30)
    said(store, "sessions/c.jsonl", "The server is called Basalt", days_ago=0)
    store.close()

    answer = searched(settings, "server called Basalt", DECAY)

    assert paths(answer) == ["sessions/c.jsonl", "sessions/b.jsonl", "sessions/a.jsonl"]
    # Equal ones are a hundredth apart before they age.
    assert [result.score for result in answer.results] == pytest.approx([1.0, 0.5, 0.25], abs=0.021)
