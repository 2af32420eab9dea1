"""The wheel of recalld in an environment that has nothing but what the wheel asks for, without an extra."""

from __future__ import annotations

import shlex
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from mcp import Client
from packaging.requirements import Requirement

from schemas.version import install_command
from tests.daemon import REPOSITORY, clean_environment
from tests.mcp_clients import calling, child, connected, found


def required(of: Distribution, seen: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distributions that this one needs on this machine, and theirs, from the environment of the tests."""
    for requirement in map(Requirement, of.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            extras = requirement.extras or {""}
            package = distribution(requirement.name)
            if package.name not in seen:
                seen[package.name] = package
                required(package, seen)
            for needed in map(Requirement, package.requires or ()):
                if needed.marker and any(needed.marker.evaluate({"extra": extra}) for extra in extras - {""}):
                    seen.setdefault(needed.name, distribution(needed.name))
    return seen


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment with the wheel, built from this checkout without a network, and links to its requirements."""
    made = tmp_path / "environment"
    venv.create(made, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", str(tmp_path), str(REPOSITORY)]
    subprocess.run(wheel, check=True, capture_output=True, timeout=120)
    [file] = tmp_path.glob("recalld-*.whl")
    python = str(made / "bin" / "python")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", "--no-index", str(file)], check=True, timeout=120)
    [packages] = made.glob("lib/python*/site-packages")
    [metadata] = packages.glob("recalld-*.dist-info")
    for package in required(Distribution.at(metadata), {}).values():
        for name in {path.parts[0] for path in package.files or () if path.parts[0] not in ("..", "__pycache__")}:
            if not (packages / name).exists():
                (packages / name).symlink_to(str(package.locate_file(name)))
    return made


@pytest.mark.long
def test_the_wheel_alone_finds_by_meaning_serves_mcp_and_has_openais_sdk(
    environment: Path, workspace: Path, home: Path
) -> None:
    (workspace / "memory" / "friday.md").write_text("The dentist appointment moved to nine.\n", "utf-8")
    variables, program = clean_environment(), str(environment / "bin" / "recalld")

    def run(*arguments: str, folder: Path = environment) -> str:
        command = [program, "--home", str(home), *arguments]
        ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    run("index", "--workspace", str(workspace))
    assert "memory/friday.md" in run("search", "tooth doctor visit")

    async def search(client: Client) -> str:
        return str(found(await calling("memory_search", query="teeth")(client))["mode"])

    server = child(program, "--home", str(home), "mcp", env=variables, cwd=str(environment))
    assert connected(server, search) == "hybrid"
    code = "import openai, httpx2, recalld, sys; print(recalld.__file__)"
    python = [str(environment / "bin" / "python"), "-c", code]
    imported = subprocess.run(python, cwd=environment, env=variables, capture_output=True, text=True, timeout=60)
    assert imported.stdout.startswith(str(environment)), imported.stderr


def test_a_hint_names_the_command_of_the_environment(tmp_path: Path) -> None:
    commands = {"": [sys.executable, "-m", "pip", "install"], "uv-receipt.toml": ["uv", "tool", "install"]}
    for file, command in (commands | {"pipx_metadata.json": ["pipx", "inject", "recalld"]}).items():
        (tmp_path / file).touch()
        shown = install_command("voyage", environment=str(tmp_path))
        assert (shlex.split(shown)[:-1], shown.split()[-1]) == (command, '"recalld[voyage]"')
