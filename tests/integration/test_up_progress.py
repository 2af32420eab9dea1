"""Progress of indexing in `recalld up`: what waits in the queue, and what the indexes hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from recalld.up.progress import Progress
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


def progress_of(settings: Settings) -> Progress:
    return Progress(settings, open_broker(settings).health)


def test_the_sum_of_all_agents_is_said_once_all_is_there_and_never_before(
    several: Settings, broker_server: BrokerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    workers, progress = Workers(several), progress_of(several)
    for name in NAMES:
        for number in range(3):
            workers.write(f"memory/{number}.md", f"Note {number} of {name}.", agent=name)
        workers.mark("memory/0.md", "memory/1.md", "memory/2.md", agent=name, lane=Lane.BACKFILL)
    progress.look()
    assert {"0", "9"} <= set(capsys.readouterr().out.split())

    said: list[str] = []

    def looked() -> bool:
        progress.look()
        said.extend(capsys.readouterr().out.splitlines())
        return any("up to date" in line for line in said)

    with workers:
        wait_until(looked)
    [total] = [line for line in said if "documents" in line]
    assert [word for word in total.split() if word.isdigit()] == ["9", "9"]
    progress.look()
    assert "document" not in capsys.readouterr().out, "nothing new"


def test_an_agent_without_documents_is_named_once_with_what_to_do(
    settings: Settings, broker_server: BrokerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace, progress = settings.agents[0].workspace, progress_of(settings)
    (workspace / "other.md").write_text("The lynx hides.\n")
    progress.look()
    printed = capsys.readouterr().out
    assert (printed.startswith("main: "), str(workspace) in printed) == (True, True)
    assert 'extra_paths = ["."]' in printed
    progress.look()
    assert str(workspace) not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        # In a process without the key no vectors are to come.
        ("openai", ["up to date: 6 documents, by keyword only"]),
        ("stub", ["ada: it does not answer", "6 documents searchable by keyword; vectors 0 of 6"]),
    ],
)
def test_vectors_that_do_not_come_are_told_with_the_reason_that_workers_reported(
    several: Settings, broker_server: BrokerServer, capsys: pytest.CaptureFixture[str], provider: str, said: list[str]
) -> None:
    for name in NAMES:
        folder = several.agent(name).workspace / "memory"
        folder.mkdir(parents=True)
        for number in range(2):
            (folder / f"{number}.md").write_text(f"Note {number} of {name}.\n")
        write_index(several, name, vectors=False).close()
        Workers(several).health.report(
            ConditionCode.PROVIDER_FAILS, agent=name, subject="stub", error="it does not answer"
        )
    agents = [agent.model_copy(update={"provider": provider}) for agent in several.agents]
    progress_of(several.model_copy(update={"agents": tuple(agents)})).look()
    assert capsys.readouterr().out.splitlines() == said


def test_a_broker_that_is_away_is_no_reason_to_say_anything(
    several: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    progress_of(several).look()
    assert capsys.readouterr().out == ""
