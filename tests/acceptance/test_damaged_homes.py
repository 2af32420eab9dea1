"""Files of a home that a disk or a person spoilt: what is derived is made again, what is not is named in a sentence.

Derived: the files below `run` but tokens, the home's two random words, the broker's notes and queue, and what lies
beside an index. Not derived, and never thrown away: the workspaces that flags named (`agents.json`), imports, tokens.
Bytes of a lock say nothing. Damaged indexes, caches and spooled events: `test_damaged_files`, `test_cache`,
`test_spool`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from recalld.cli import run
from tests.daemon import Daemon, recalld
from tests.waiting import wait_until

DERIVED = (
    "run/service.json",
    "run/watch.json",
    "run/hooks.json",
    "namespace",
    "id",
    "broker/server",
)

LOCKS = ("run/up.lock", "run/service.lock", "broker/lock", "broker/owner.lock", "indexes/main/lock")


def flip(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 0xFF for byte in path.read_bytes()))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_another_shape(path: Path) -> None:
    path.write_text('[{"key": {}, "pid": 99999999999999999999, "port": 70000, "host": 7}]', "utf-8")


Damage = Callable[[Path], None]
DAMAGES: tuple[Damage, ...] = (flip, empty, replace_by_another_shape, replace_by_a_folder)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Daemon:
    """A home that was used, with the files that a killed daemon leaves behind."""
    folder = tmp_path_factory.mktemp("used")
    workspace = folder / "workspace"
    (workspace / "memory").mkdir(parents=True)
    (workspace / "MEMORY.md").write_text("The gateway port is 8443.\n", "utf-8")
    with Daemon(folder / "home", workspace) as daemon:
        wait_until(lambda: daemon.found("gateway port", "MEMORY.md"))
    left = {"host": "127.0.0.1", "port": 9, "pid": os.getpid(), "secret": "s" * 64}
    for name, content in (
        ("run/service.json", json.dumps(left)),
        ("run/watch.json", json.dumps({"main": {"mode": "events", "pid": os.getpid()}})),
        ("run/hooks.json", json.dumps({"url": "http://127.0.0.1:9/", "pid": os.getpid()})),
        ("id", "0123456789abcdef"),
        ("broker/server", "1 2 3"),
    ):
        (daemon.home / name).write_text(content, "utf-8")
    assert all((daemon.home / name).exists() for name in (*DERIVED, *LOCKS))
    return daemon


@pytest.fixture
def daemon(used: Daemon, tmp_path: Path) -> Iterator[Daemon]:
    """A copy of that home, whose daemon is not started."""
    shutil.copytree(used.home, tmp_path / "home", symlinks=True)
    copy = Daemon(tmp_path / "home", used.workspace)
    yield copy
    copy.stop()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", [*DERIVED, *LOCKS])
def test_search_and_status_answer_beside_a_damaged_file(
    daemon: Daemon, name: str, damage: Damage, capsys: pytest.CaptureFixture[str]
):
    damage(daemon.home / name)
    assert run([*daemon.options(), "search", "gateway port", "--json"]) == 0
    shown = capsys.readouterr()
    assert [hit["path"] for hit in json.loads(shown.out)["results"]] == ["MEMORY.md"], shown.err
    assert run([*daemon.options(), "status", "--json"]) in {0, 4}, capsys.readouterr()
    assert not list(daemon.home.glob("run/crash-*")), capsys.readouterr()


@pytest.mark.parametrize(
    "damage",
    [flip, *(pytest.param(one, marks=pytest.mark.long) for one in DAMAGES[1:])],
    ids=lambda damage: damage.__name__,
)
def test_up_starts_with_every_derived_file_damaged_and_makes_them_again(daemon: Daemon, damage: Damage):
    for name in DERIVED:
        damage(daemon.home / name)
    daemon.start()
    daemon.write("memory/new.md", f"The {damage.__name__} marmot.\n")
    wait_until(lambda: daemon.found("gateway port", "MEMORY.md"))
    assert json.loads((daemon.home / "run" / "service.json").read_bytes())["port"] == daemon.port()
    assert "main" in json.loads((daemon.home / "run" / "watch.json").read_bytes())
    assert daemon.stop() == 0


@pytest.mark.long
def test_up_says_that_an_index_has_another_format_and_finds_everything_again(daemon: Daemon):
    [index] = (daemon.home / "indexes" / "main").glob("*.sqlite")
    connection = apsw.Connection(str(index))
    connection.pragma("user_version", 99)
    connection.close()
    daemon.start()
    wait_until(lambda: daemon.found("gateway port", "MEMORY.md"))
    assert daemon.said().count(f"{index} has") == 1
    assert daemon.stop() == 0


@pytest.mark.parametrize("damage", [flip, replace_by_a_folder], ids=lambda damage: damage.__name__)
def test_what_is_not_derived_is_left_alone_and_said(used: Daemon, tmp_path: Path, damage: Damage):
    home = tmp_path / "home"
    shutil.copytree(used.home, home, symlinks=True)
    damage(home / "agents.json")
    ended = recalld("up", "--port", "0", home=home, environment={"XDG_CONFIG_HOME": str(tmp_path)})
    assert ended.returncode in {1, 2}
    [said] = ended.stderr.splitlines()
    assert str(home / "agents.json") in said
    assert (home / "agents.json").exists()


@pytest.mark.long
def test_what_lies_in_a_home_is_its_owners_alone(daemon: Daemon):
    shutil.rmtree(daemon.home)
    with daemon:
        wait_until(lambda: daemon.found("gateway port", "MEMORY.md"))
        modes = {}
        for path in (daemon.home, *daemon.home.rglob("*")):
            with suppress(FileNotFoundError):  # the daemon removes files meanwhile
                modes[path] = path.lstat().st_mode & 0o777
    assert daemon.home / "indexes" / "main" / "CURRENT" in modes
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}
