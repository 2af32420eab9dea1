"""Progress of indexing in `recalld up`: what waits in the queue, and what the indexes hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from recalld.up.progress import Progress, Sum, line
from recalld.wiring import open_broker
from schemas.conditions import ConditionCode
from schemas.documents import Lane
from schemas.settings import Settings
from tests.waiting import wait_until
from tests.working import Workers
from tests.written_index import write_index
from workers.queue.private_server import BrokerServer

NAMES = ("ada", "bob", "eve")


@pytest.fixture
def several(settings: Settings, tmp_path: Path) -> Settings:
    made = [settings.agents[0].model_copy(update={"id": name, "workspace": tmp_path / name}) for name in NAMES]
    return settings.model_copy(update={"agents": tuple(made)})


@pytest.fixture
def progress(several: Settings) -> Progress:
    return Progress(several, open_broker(several))


def fill(settings: Settings, *names: str, notes: int = 1, vectors: bool = True) -> None:
    """Write so many notes of each agent into its index."""
    for name in names:
        folder = settings.agent(name).workspace / "memory"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(notes):
            (folder / f"{number}.md").write_text(f"Note {number} of {name}.\n")
        write_index(settings, name, vectors=vectors).close()


def test_the_sum_of_all_agents_is_said_once_all_is_there_and_never_before(
    several: Settings, progress: Progress, broker_server: BrokerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = Workers(several)
    for name in NAMES:
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


def test_an_index_that_cannot_be_read_is_missing_from_the_sum_and_named(
    several: Settings, progress: Progress, broker_server: BrokerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(several, "ada", "bob", notes=2)
    folder = several.indexes_path / "bob"
    (folder / (folder / "CURRENT").read_text().strip()).write_bytes(b"no database" * 5000)
    progress.look()
    assert capsys.readouterr().out == (
        "up to date: 2 documents, 2 chunks with vectors; 1 agent is not counted: see `recalld status`\n"
    )


def test_vectors_that_do_not_come_are_told_with_the_reason_that_workers_reported(
    several: Settings, progress: Progress, broker_server: BrokerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(several, *NAMES, notes=2, vectors=False)
    for name in NAMES:
        Workers(several).board.report(
            ConditionCode.PROVIDER_FAILS, agent=name, subject="stub", error="it does not answer"
        )
    progress.look()
    assert capsys.readouterr().out.splitlines() == [
        "ada, bob, eve: it does not answer",
        "6 documents searchable by keyword; vectors 0 of 6",
    ]
    fill(several, "ada", notes=3, vectors=False)
    progress.look()
    assert "it does not answer" not in capsys.readouterr().out, "once"


def test_vectors_that_cannot_be_had_are_not_waited_for(
    several: Settings, broker_server: BrokerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(several, *NAMES, notes=2, vectors=False)
    keyless = [agent.model_copy(update={"provider": "openai"}) for agent in several.agents]
    settings = several.model_copy(update={"agents": tuple(keyless)})
    Progress(settings, open_broker(settings)).look()
    assert capsys.readouterr().out == "up to date: 6 documents, by keyword only\n"


def test_a_broker_that_is_away_is_no_reason_to_say_anything(
    progress: Progress, capsys: pytest.CaptureFixture[str]
) -> None:
    progress.look()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (Sum(files=4, vectors_ready=6), "up to date: 4 documents, 6 chunks with vectors"),
        (Sum(files=1, vectors_ready=1), "up to date: 1 document, 1 chunk with vectors"),
        (Sum(files=2, embeds=False), "up to date: 2 documents, by keyword only"),
        (
            Sum(files=4, vectors_ready=6, failed=3),
            "up to date: 4 documents, 6 chunks with vectors; 3 failed: see `recalld dead list`",
        ),
        (
            Sum(files=2, failed=1, behind=5),
            "2 documents searchable by keyword, 5 to go; 1 failed: see `recalld dead list`",
        ),
        (
            Sum(files=1, behind=1, uncounted=1),
            "1 document searchable by keyword, 1 to go; 1 agent is not counted: see `recalld status`",
        ),
        (
            Sum(files=2, vectors_ready=3, lacking=5, eta_seconds=10.0),
            "2 documents searchable by keyword; vectors 3 of 8, about 10 s left",
        ),
        (
            Sum(files=2, lacking=5, eta_seconds=10.0, rate=0.41),
            "2 documents searchable by keyword; vectors 0 of 5, 0.4 a second, about 10 s left",
        ),
    ],
)
def test_progress_is_one_line_with_what_failed_and_what_is_not_counted(known: Sum, said: str) -> None:
    assert line(known) == said
