"""The client as a distribution of its own: built, installed alone and beside recalld, asking a real service."""

from __future__ import annotations

import ast
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from schemas.settings import Settings
from tests.daemon import REPOSITORY, clean_environment
from tests.serving import running
from tests.written_index import write_index

#: Uses every part of the client with its types; read by mypy, then run.
PROGRAM = """
import asyncio
import sys
from pathlib import Path

from recalld.client import AsyncClient, Client, ClientError, SearchAnswer, ServiceUnavailable, Status
from recalld.context import Conversation, SilentFilter


def paths(answer: SearchAnswer) -> list[str]:
    return [result["path"] for result in answer["results"]]


def ask(url: str) -> None:
    with Client(url=url, session_key="agent:main:main") as memory:
        print(paths(memory.search("dentist appointment", max_results=1)))
        print(memory.get("memory/friday.md", lines=1)["text"])
        status: Status = memory.status()
        print(status["agents"][0]["index"]["files"], [tool["function"]["name"] for tool in memory.tools()])
        print(memory.call_tool("memory_get", '{"path": "memory/friday.md", "lines": 1}'))
        conversation = Conversation(memory, "s1", window_tokens=100_000)
        token = conversation.flush_plan(90_000)["silentToken"]
        messages = [{"role": "user", "content": "hello"}]
        print([conversation.before_prompt("dentist"), SilentFilter(token).feed(token), conversation.prune(messages)])


async def ask_both(url: str) -> None:
    async with AsyncClient(url=url) as memory:
        found = await asyncio.gather(memory.search("dentist"), memory.search("insurance card"))
        print([paths(answer) for answer in found], len(memory.tools("responses")))


ask(sys.argv[1])
asyncio.run(ask_both(sys.argv[1]))
at_home = Client.at_home(Path(sys.argv[2]))
if at_home is not None:
    print(paths(at_home.search("dentist")), Client.at_home(Path(sys.argv[2]) / "other"))
try:
    Client("127.0.0.1", 1).status()
except ServiceUnavailable as error:
    problem: ClientError = error
    print("unavailable")
"""

PRINTED = """\
['memory/friday.md']
# Friday
1 ['memory_search', 'memory_get']
{"path": "memory/friday.md", "status": "ok", "text": "# Friday", "from": 1, "lines": 1, "totalLines": 4, \
"truncated": true, "nextFrom": 2}
['', '', [{'role': 'user', 'content': 'hello'}]]
[['memory/friday.md'], ['memory/friday.md']] 2
['memory/friday.md'] None
unavailable
"""

#: Which of recalld's rooms can be imported, and where the client's code is.
LOOK = """
import importlib.util, sys
rooms = ["schemas", "memory", "producers", "workers", "recalld.cli", "recalld.local", "recalld.client"]
print(*[room for room in rooms if importlib.util.find_spec(room)])
from recalld.client import AsyncClient, Client
print(Client.__module__, AsyncClient.__module__)
known = {*sys.stdlib_module_names, "__main__", "sitecustomize"}
print(*sorted({name.partition(".")[0] for name in sys.modules} - known))
"""


def pip(*arguments: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments],
        env={**clean_environment(), "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both distributions, built from this checkout without a network."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in (REPOSITORY, REPOSITORY / "deploy" / "client"):
        pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(folder), str(source))
    return {file.name.partition("-")[0]: file for file in folder.glob("*.whl")}


@pytest.fixture
def alone(wheels: dict[str, Path], tmp_path: Path) -> Callable[..., str]:
    """Run code in a virtual environment that holds the client and nothing else; returns what it prints."""
    venv.create(tmp_path / "environment", with_pip=False)
    python = str(tmp_path / "environment" / "bin" / "python")
    pip("--python", python, "install", "--no-index", "--no-deps", str(wheels["recalld_client"]))

    def run(code: str, *arguments: str) -> str:
        # From a folder without anything of this checkout.
        command = [python, "-W", "error", "-c", code, *arguments]
        ended = subprocess.run(
            command, cwd=Path(python).parent, env=clean_environment(), capture_output=True, text=True, timeout=60
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.fixture
def service(settings: Settings, workspace: Path) -> Iterator[httpx.Client]:
    (workspace / "memory" / "friday.md").write_text(
        "# Friday\n\nThe dentist appointment moved to nine.\nBring the insurance card.\n", "utf-8"
    )
    write_index(settings)
    with running(settings) as client:
        yield client


def test_alone_it_is_the_client_and_nothing_else(alone: Callable[..., str], service: httpx.Client, home: Path) -> None:
    assert alone(LOOK).splitlines() == [
        "recalld.client",
        "_recalld_client.client _recalld_client.client",
        "_recalld_client recalld",
    ]
    assert alone(PROGRAM, str(service.base_url), str(home)) == PRINTED


def test_it_needs_nothing_has_recallds_version_and_no_file_of_it(wheels: dict[str, Path]) -> None:
    mine, theirs = (set(zipfile.ZipFile(wheels[name]).namelist()) for name in ("recalld_client", "recalld"))
    assert mine & theirs == set()
    assert {"recalld/client/py.typed", "recalld/client/tools.json"} <= theirs
    with zipfile.ZipFile(wheels["recalld_client"]) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith("METADATA")]
        metadata = wheel.read(name).decode()
    assert "Requires-Dist" not in metadata
    assert "Requires-Python: >=3.9\n" in metadata
    assert wheels["recalld_client"].name.split("-")[1] == wheels["recalld"].name.split("-")[1]


def test_its_code_is_written_in_the_python_that_it_asks_for() -> None:
    for file in (*(REPOSITORY / "recalld" / "client").glob("*.py"), *(REPOSITORY / "deploy" / "client").rglob("*.py")):
        ast.parse(file.read_text("utf-8"), feature_version=(3, 9))
