"""One command, notes in, answers out: the whole of recalld as a person uses it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.status.run_files import is_the_same
from tests.daemon import REPOSITORY, Daemon
from tests.waiting import wait_until


@pytest.fixture
def daemon(home: Path, workspace: Path) -> Iterator[Daemon]:
    (workspace / "MEMORY.md").write_text("# Memory\n\nThe gateway listens on port 18789.\n", encoding="utf-8")
    with Daemon(home, workspace) as running:
        wait_until(lambda: running.found("gateway port 18789", "MEMORY.md"))
        yield running


def test_a_note_is_found_after_writing_editing_renaming_and_gone_after_deleting(daemon: Daemon) -> None:
    note = daemon.write("memory/2026-11-20.md", "# Friday\n\nWe chose Postgres because of pgvector.\n")
    wait_until(lambda: daemon.found("why Postgres", "memory/2026-11-20.md"))

    daemon.write("memory/2026-11-20.md", "# Friday\n\n数据库迁移推迟到下个月，因为测试环境内存不足。\n")
    wait_until(lambda: daemon.found("数据库迁移 推迟", "memory/2026-11-20.md"))
    assert not any("Postgres" in result["snippet"] for result in daemon.search("why Postgres"))

    note.rename(daemon.workspace / "memory" / "migration.md")
    wait_until(lambda: daemon.found("数据库迁移", "memory/migration.md"))
    wait_until(lambda: not daemon.found("数据库迁移", "memory/2026-11-20.md"))

    (daemon.workspace / "memory" / "migration.md").unlink()
    wait_until(lambda: not daemon.found("数据库迁移", "memory/migration.md"))


@pytest.mark.long
def test_an_agent_that_joins_the_settings_is_searchable_without_a_restart_by_hand(
    daemon: Daemon, tmp_path: Path
) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "MEMORY.md").write_text("The shop sells kettles.\n", "utf-8")
    first = daemon.children("serve")
    with daemon.config.open("a", encoding="utf-8") as settings:
        settings.write(f'[[agents]]\nid = "shop"\nworkspace = "{shop}"\n')
    wait_until(lambda: "sells kettles" in daemon.run("search", "kettles", "--agent", "shop").stdout)
    assert daemon.search("gateway port", "--agent", "main")
    assert daemon.children("serve") != first
    second = daemon.children("serve")
    daemon.config.write_text(f"model = 'other'\n{daemon.config.read_text('utf-8')}", "utf-8")
    wait_until(lambda: "was changed at" in daemon.run("status").stdout, what="a changed model waits for a restart")
    assert daemon.children("serve") == second


@pytest.mark.long
@pytest.mark.parametrize("name", ["work", "watch", "serve", "broker"])
def test_a_killed_process_comes_back_and_nothing_is_lost(daemon: Daemon, name: str) -> None:
    daemon.write("memory/early.md", "Early: the tapir was fed.\n")
    (pid,) = [daemon.broker_pid()] if name == "broker" else daemon.children(name)
    port = daemon.port()
    os.kill(pid, signal.SIGKILL)
    daemon.write("memory/late.md", "Late: the okapi was fed.\n")
    for query, path in (("tapir", "memory/early.md"), ("okapi", "memory/late.md")):
        wait_until(lambda query=query, path=path: daemon.running() and daemon.found(query, path), what=path)
    wait_until(lambda: daemon.status()["ok"], what="status is ok again")
    assert daemon.port() == port, "what was printed at the start still holds"
    deep = daemon.run("status", "--deep", "--json")
    assert '"integrity":[]' in deep.stdout.replace(" ", "").replace("\n", ""), deep.stdout


@pytest.mark.long
def test_children_end_when_the_supervisor_is_killed_and_the_next_start_goes_on(daemon: Daemon) -> None:
    children = [pid for name in ("watch", "work", "serve") for pid in daemon.children(name)]
    assert len(children) == 3
    daemon.kill()
    wait_until(lambda: not any(is_the_same(pid, None) for pid in children))
    daemon.write("memory/after.md", "After the crash the ibex was found.\n")
    daemon.start()
    wait_until(lambda: daemon.found("ibex", "memory/after.md"))


@pytest.mark.long
def test_two_homes_on_one_redis_do_not_disturb_each_other(daemon: Daemon, tmp_path: Path) -> None:
    url = f"unix://{daemon.home / 'broker' / 'valkey.sock'}"
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "memory").mkdir(parents=True)
    with Daemon(tmp_path / "home-2", elsewhere, environment={"REDIS_URL": url}) as second:
        second.write("memory/own.md", "Only here: the quokka smiled.\n")
        daemon.write("memory/own.md", "Only there: the numbat yawned.\n")
        wait_until(lambda: second.found("quokka", "memory/own.md"))
        wait_until(lambda: daemon.found("numbat", "memory/own.md"))
        assert not second.search("numbat") or not any("numbat" in r["snippet"] for r in second.search("numbat"))
        assert not any("quokka" in r["snippet"] for r in daemon.search("quokka"))


@pytest.mark.long
def test_the_sample_is_found_in_both_languages_with_the_bundled_model(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    shutil.copytree(REPOSITORY / "deploy" / "sample-workspace", workspace)
    with Daemon(tmp_path / "home", workspace, provider="local") as daemon:
        wait_until(lambda: vectors_complete(daemon), what="every chunk has its vector")
        assert daemon.found("gateway port", "MEMORY.md")
        assert daemon.found("暖气阀门在哪里", "MEMORY.md")
        # By meaning, across languages: no word of these questions is in the note.
        note = daemon.write("memory/keys.md", "The spare key is with our neighbour on the third floor.\n")
        wait_until(lambda: daemon.found("spare key neighbour", "memory/keys.md"))
        wait_until(lambda: vectors_complete(daemon))
        assert daemon.found("备用钥匙在邻居那里吗", "memory/keys.md")
        assert daemon.status()["provider"] == "local"
        note.unlink()


def vectors_complete(daemon: Daemon) -> bool:
    index = daemon.status()["index"]
    return bool(index["vectorsReady"] == index["chunks"] > 0)


@pytest.mark.long
def test_a_missing_backend_stops_nothing_and_is_named_wherever_a_user_looks(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The gateway listens on port 18789.\n", encoding="utf-8")
    with Daemon(home, workspace, config='backend = "nonsense"') as daemon:
        wait_until(lambda: daemon.found("gateway port 18789", "MEMORY.md"))
        shown = {"up": daemon.said(), "search": daemon.run("search", "gateway").stderr}
        shown |= {name: daemon.run(name).stdout for name in ("status", "doctor")}
    assert {name: "'nonsense'" in text for name, text in shown.items()} == dict.fromkeys(shown, True)
