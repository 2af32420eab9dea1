"""Progress of indexing in `recalld up`, from one question to the broker for all agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from recalld.up.progress import Progress
from recalld.wiring import open_broker
from schemas.conditions import ConditionCode
from schemas.documents import Lane
from schemas.ports import IndexFigures
from schemas.settings import Settings
from tests.waiting import wait_until
from tests.working import Workers
from workers.queue.private_server import BrokerServer

NAMES = ("ada", "bob", "eve")


@pytest.fixture
def several(settings: Settings, tmp_path: Path) -> Settings:
    made = [settings.agents[0].model_copy(update={"id": name, "workspace": tmp_path / name}) for name in NAMES]
    return settings.model_copy(update={"agents": tuple(made)})


def test_the_sum_of_all_agents_is_said_once_all_is_there_and_never_before(
    several: Settings, broker_server: BrokerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    workers, progress = Workers(several), Progress(several, open_broker(several))
    for name in NAMES:
        workers.board.record_figures(name, IndexFigures(), commits=0)
        for number in range(3):
            workers.write(f"memory/{number}.md", f"Note {number} of {name}.", agent=name)
        workers.mark("memory/0.md", "memory/1.md", "memory/2.md", agent=name, lane=Lane.BACKFILL)
    progress.look()
    assert capsys.readouterr().out == "0 documents searchable by keyword, 9 to go\n"

    said: list[str] = []

    def looked() -> bool:
        progress.look()
        said.extend(capsys.readouterr().out.splitlines())
        return any("up to date" in line for line in said)

    with workers:
        wait_until(looked)
    assert [line for line in said if "documents" in line] == ["up to date: 9 documents, 9 chunks with vectors"]
    progress.look()
    assert "document" not in capsys.readouterr().out, "nothing new"


def test_what_was_counted_before_the_last_commit_is_not_said_to_be_all(
    several: Settings, broker_server: BrokerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    workers, progress = Workers(several), Progress(several, open_broker(several))
    for name in NAMES:
        commits = workers.board.commits(name)
        workers.board.record_figures(name, IndexFigures(files=1, vectors_ready=1), commits=commits)
    workers.board.committed("bob")
    progress.look()
    assert capsys.readouterr().out == ""
    workers.board.record_figures("bob", IndexFigures(files=5, vectors_ready=5), commits=workers.board.commits("bob"))
    progress.look()
    assert capsys.readouterr().out == "up to date: 7 documents, 7 chunks with vectors\n"


def test_agents_that_were_not_counted_are_missing_from_the_sum_and_named(
    several: Settings, broker_server: BrokerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    workers, progress = Workers(several), Progress(several, open_broker(several))
    workers.board.record_figures("ada", IndexFigures(files=4, vectors_ready=6), commits=0)
    workers.board.record_figures("bob", IndexFigures(files=4, vectors_ready=6), commits=0)
    workers.board.record_figures("bob", None, commits=0)
    progress.look()
    assert capsys.readouterr().out == (
        "up to date: 4 documents, 6 chunks with vectors; 2 agents are not counted: see `recalld status`\n"
    )


def test_vectors_that_do_not_come_are_told_with_the_reason_that_workers_reported(
    several: Settings, broker_server: BrokerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    workers, progress = Workers(several), Progress(several, open_broker(several))
    for name in NAMES:
        workers.board.record_figures(name, IndexFigures(files=2, vectors_pending=2), commits=0)
    for name in NAMES:
        workers.board.report(ConditionCode.PROVIDER_FAILS, agent=name, subject="stub", error="it does not answer")
    progress.look()
    assert capsys.readouterr().out.splitlines() == [
        "ada, bob, eve: it does not answer",
        "6 documents searchable by keyword; vectors 0 of 6",
    ]
    workers.board.record_figures("ada", IndexFigures(files=3, vectors_pending=2), commits=0)
    progress.look()
    assert "it does not answer" not in capsys.readouterr().out, "once"


def test_vectors_that_cannot_be_had_are_not_waited_for(
    several: Settings, broker_server: BrokerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    keyless = [agent.model_copy(update={"provider": "openai"}) for agent in several.agents]
    workers, progress = (
        Workers(several),
        Progress(several.model_copy(update={"agents": tuple(keyless)}), open_broker(several)),
    )
    for name in NAMES:
        workers.board.record_figures(name, IndexFigures(files=2, vectors_pending=2), commits=0)
    progress.look()
    assert capsys.readouterr().out == "up to date: 6 documents, by keyword only\n"


def test_a_broker_that_is_away_is_no_reason_to_say_anything(
    several: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    Progress(several, open_broker(several)).look()
    assert capsys.readouterr().out == ""
