"""A very long transcript is indexed in turns: nobody else waits for its end, and it ends as if it had been short."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.documents import DocumentKey, Lane
from schemas.settings import Settings
from tests.transcript_files import message_line
from tests.waiting import wait_until
from tests.working import Workers
from workers import index_job as indexing_job
from workers.queue.private_server import BrokerServer

MESSAGES = 30_000
KEY = DocumentKey("sessions", "sessions/long.jsonl")


@pytest.fixture
def two_agents(settings: Settings, tmp_path: Path) -> Settings:
    """One backfill job at a time for both of them; keywords only."""
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    with (sessions / KEY.path.removeprefix("sessions/")).open("wb") as file:
        for number in range(MESSAGES):
            file.write(message_line("plain", "user", f"word{number} " + "is said about telescopes again " * 8))
    agents = []
    for name in ("main", "second"):
        (tmp_path / name / "memory").mkdir(parents=True)
        agents.append({"id": name, "workspace": tmp_path / name, "provider": "none", "sessions": [str(sessions)]})
    facts = {"home": settings.home, "agents": agents, "workers": {"threads": 1}}
    return Settings.model_validate(facts)


def test_other_agents_take_their_turn_while_a_long_transcript_is_read(
    two_agents: Settings, broker_server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing_job, "TURN_SECONDS", 0.2)
    with Workers(two_agents) as workers:
        workers.write("memory/short.md", "The okapi is short.\n", agent="second")
        workers.queue.mark_changed("main", [KEY], lane=Lane.BACKFILL)
        wait_until(lambda: workers.counts("main").chunks, what="the long one is under way")
        workers.mark("memory/short.md", agent="second", lane=Lane.BACKFILL)
        wait_until(lambda: workers.finds("okapi", "second"))
        assert not workers.settled("main"), "the long transcript was over before it was the other agent's turn"
        wait_until(lambda: workers.settled("main"), timeout=120)
        wait_until(lambda: workers.settled("second"))
        in_turns = content(workers, "main")
        monkeypatch.setattr(indexing_job, "TURN_SECONDS", 600.0)
        workers.queue.mark_changed("second", [KEY], lane=Lane.BACKFILL)
        wait_until(lambda: workers.settled("second"), timeout=120)
        assert in_turns == content(workers, "second")
        assert workers.finds(f"word{MESSAGES - 1}")


def content(workers: Workers, agent: str) -> list[tuple[int, int, int, str]]:
    """Ordinal, lines and hash of each chunk of the long transcript."""
    with workers.reading(agent) as reader:
        assert reader is not None
        return [(one.ordinal, one.start_line, one.end_line, one.text_hash) for one in reader.chunks_of(KEY)]
