"""The client as a distribution of its own: built, installed alone and beside recalld, asking a real service."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
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


def paths(answer: SearchAnswer) -> list[str]:
    return [result["path"] for result in answer["results"]]


def ask(url: str) -> None:
    with Client(url=url, session_key="agent:main:main") as memory:
        print(paths(memory.search("dentist appointment", max_results=1)))
        print(memory.get("memory/friday.md", lines=1)["text"])
        status: Status = memory.status()
        print(status["agents"][0]["index"]["files"], [tool["function"]["name"] for tool in memory.tools()])
        print(memory.call_tool("memory_get", '{"path": "memory/friday.md", "lines": 1}'))


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


class Environment:
    """A virtual environment with nothing in it, worked on by this environment's pip."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.python = folder / "bin" / "python"

    def pip(self, *arguments: str) -> None:
        pip("--python", str(self.python), *arguments)

    def install(self, *wheels: Path) -> None:
        self.pip("install", "--no-index", "--no-deps", *map(str, wheels))

    def uninstall(self, name: str) -> None:
        self.pip("uninstall", "--yes", name)

    def run(self, code: str, *arguments: str) -> str:
        """What it prints. Run from an empty folder, so that nothing of this checkout is about."""
        ended = subprocess.run(
            [str(self.python), "-W", "error", "-c", code, *arguments],
            cwd=self.python.parent,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


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
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "environment")


@pytest.fixture
def service(settings: Settings, workspace: Path) -> Iterator[httpx.Client]:
    (workspace / "memory" / "friday.md").write_text(
        "# Friday\n\nThe dentist appointment moved to nine.\nBring the insurance card.\n", "utf-8"
    )
    write_index(settings)
    with running(settings) as client:
        yield client


def test_alone_it_is_the_client_and_nothing_else(
    wheels: dict[str, Path], environment: Environment, service: httpx.Client, home: Path
) -> None:
    environment.install(wheels["recalld_client"])
    assert environment.run(LOOK).splitlines() == [
        "recalld.client",
        "_recalld_client.client _recalld_client.client",
        "_recalld_client recalld",
    ]
    assert environment.run(PROGRAM, str(service.base_url), str(home)) == PRINTED


@pytest.mark.long
def test_a_program_that_uses_it_passes_strict_type_checks(
    wheels: dict[str, Path], environment: Environment, tmp_path: Path
) -> None:
    environment.install(wheels["recalld_client"])
    program = tmp_path / "program.py"
    options = ["--strict", "--config-file", "", "--python-executable", str(environment.python), "--cache-dir", "cache"]

    def checked(text: str) -> tuple[int, str]:
        program.write_text(text, "utf-8")
        command = [sys.executable, "-m", "mypy", *options, program.name]
        ended = subprocess.run(
            command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=120
        )
        return ended.returncode, ended.stdout.strip() + ended.stderr

    assert checked(PROGRAM) == (0, "Success: no issues found in 1 source file")
    code, said = checked(
        PROGRAM.replace('result["path"]', 'result["file"]').replace("max_results=1", "max_results='1'")
    )
    assert code == 1
    assert '"SearchResult" has no key "file"' in said
    assert 'Argument "max_results" to "search"' in said


@pytest.mark.long
@pytest.mark.parametrize("order", list(itertools.permutations(["recalld", "recalld_client"])))
def test_beside_recalld_neither_is_in_the_others_way(
    wheels: dict[str, Path], environment: Environment, order: tuple[str, str]
) -> None:
    environment.install(wheels[order[0]])
    environment.install(wheels[order[1]])
    both = environment.run(LOOK).splitlines()
    assert both[0].split()[-1] == "recalld.client"
    assert both[1] == "recalld.client.client recalld.client.client", "recalld's own, of its own version"
    environment.uninstall(order[0])
    left = environment.run(LOOK).splitlines()
    if order[0] == "recalld":
        assert left[:2] == ["recalld.client", "_recalld_client.client _recalld_client.client"]
    else:
        assert left == both


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
