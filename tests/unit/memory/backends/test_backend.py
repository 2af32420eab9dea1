"""Backends in the status of a process whose searches reach none, such as the doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memory.backends.registry import with_absent_backends
from memory.status.home import build_status
from schemas.conditions import ConditionCode
from schemas.settings import Settings
from schemas.status import Status
from tests.quiet_health import QuietHealth
from tests.written_index import write_index

INSTALLED = {"command": "sh"}
#: Settings of an agent, the text of QMD's file -> code and reason of the condition.
STATES: dict[str, tuple[dict[str, Any], str, tuple[str, str] | None]] = {
    "the own index": ({"qmd": {"problem": "wrong"}}, "old", None),
    "QMD, well": ({"backend": "qmd", "qmd": INSTALLED}, "", None),
    "QMD, not updated": ({"backend": "qmd", "qmd": INSTALLED}, "it is locked", ("backend_fails", "it is locked")),
    "QMD, wrongly set": ({"backend": "qmd", "qmd": {"problem": "wrong"}}, "", ("backend_fails", "wrong")),
    "nothing of that name": ({"backend": "nothing"}, "", ("backend_fails", "no backend is called 'nothing'")),
    "QMD, not installed": (
        {"backend": "qmd", "qmd": {"command": "no-such-command"}},
        "",
        ("backend_fails", "the command no-such-command is not installed"),
    ),
}


def status_of(settings: Settings, agent: dict[str, Any]) -> Status:
    whole = Settings.model_validate({"home": settings.home, "agents": [{**agent, "provider": "none"}]})
    write_index(whole).close()
    return with_absent_backends(whole, build_status(whole, QuietHealth()))


@pytest.mark.parametrize(("agent", "failure", "expected"), STATES.values(), ids=STATES)
def test_a_problem_of_a_backend_is_a_condition_in_every_process(
    settings: Settings, workspace: Path, agent: dict[str, Any], failure: str, expected: tuple[str, str] | None
) -> None:
    folder = settings.home / "qmd" / "main"
    folder.mkdir(parents=True)
    (folder / "failure").write_text(failure, "utf-8")
    status = status_of(settings, {"id": "main", "workspace": workspace, **agent})
    [of_agent] = status.agents
    troubles = [trouble for trouble in of_agent.troubles if trouble.code != ConditionCode.NO_DOCUMENTS]
    assert [trouble.code for trouble in troubles] == ([expected[0]] if expected else [])
    if expected is not None:
        assert str(troubles[0].params["reason"]).startswith(expected[1])
        assert (status.ok, of_agent.ok) == (False, False)
    replaced = of_agent.backend.fallback_from if of_agent.backend is not None else None
    assert replaced == agent.get("backend"), "the own index answers here"
