"""What is written down must be true: settings, commands, exit codes, locks, and no word about one machine."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.service.mcp_door import SESSION_KEY_HEADER
from memory.service.mcp_server import SESSION_KEY_META
from recalld.cli import COMMANDS, LazyGroup, root
from recalld.commands.config import effective
from recalld.settings.keys import agent_keys, top_level_keys
from recalld.settings.load import load
from schemas.settings import Settings
from tests.settings_docs import END, example_toml, settings_table, with_settings_table

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLE = ROOT / "deploy" / "recalld.example.toml"


def test_the_readmes_settings_table_is_the_schemas() -> None:
    assert with_settings_table(README) == README, "run `make docs`"


def test_the_table_has_every_key_with_default_and_meaning() -> None:
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in settings_table().splitlines()[2:]]
    assert {row[0] for row in rows} == {
        *(f"`{key}`" for key in top_level_keys() if key != "agents"),
        "`agents.id`",
        "`agents.workspace`",
        "`agents.sessions`",
    }
    assert all(row[1] and row[2] and row[3] for row in rows)
    assert next(row for row in rows if row[0] == "`query.hybrid.mmr.lambda`")[1] == "`0.7`"
    assert next(row for row in rows if row[0] == "`service.port`")[4] == ""
    assert next(row for row in rows if row[0] == "`query.max_results`")[4] == "yes"


def test_every_setting_is_described_in_the_schema() -> None:
    keys = [*top_level_keys().values(), *agent_keys().values()]
    missing = {key.name for key in keys if not key.description and not key.name.startswith("credentials.")}
    assert missing <= {"agents"}


def test_a_readme_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="marks"):
        with_settings_table(README.replace(END, ""))


def test_the_example_file_is_the_schemas() -> None:
    assert EXAMPLE.read_text("utf-8") == example_toml(), "run `make docs`"


def test_the_example_file_changes_nothing_as_it_is(tmp_path: Path) -> None:
    loaded = load(config=str(EXAMPLE), home=str(tmp_path), environment={})
    assert loaded.settings == Settings(home=tmp_path)


def test_the_example_file_is_valid_and_complete_with_every_line_switched_on(tmp_path: Path) -> None:
    text = re.sub(r"^#(?=[^ \n])", "", EXAMPLE.read_text("utf-8"), flags=re.MULTILINE)
    file = tmp_path / "recalld.toml"
    file.write_text(text, "utf-8")
    loaded = load(config=str(file), home=str(tmp_path), environment={})
    written = set(_dotted(tomllib.loads(text)))
    own = {"id", "workspace", "sessions"}
    assert written == {*(set(top_level_keys()) - {"agents"}), *(f"agents.{key}" for key in own)}
    defaults = effective(Settings(home=tmp_path))
    values = effective(loaded.settings)
    # Every default that is a value is written down as it is; what is unset shows an example.
    plain = {key.name for key in top_level_keys().values() if key.default is not None and key.name != "agents"}
    assert {key: values[key] for key in plain} == {key: defaults[key] for key in plain}


def _dotted(table: dict[str, object], above: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict) and f"{above}{name}" not in top_level_keys():
            yield from _dotted(value, f"{above}{name}.")
        elif name == "agents" and isinstance(value, list):
            yield from _dotted(value[0], "agents.")
        else:
            yield f"{above}{name}"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_is_in_the_readme_with_its_flags(name: str) -> None:
    (row,) = [line for line in README.splitlines() if line.startswith(f"| `recalld {name}")]
    assert isinstance(root, LazyGroup)
    command = root.get_command(None, name)  # type: ignore[arg-type] - the context is not used
    assert command is not None
    commands = getattr(command, "commands", {}).values() or [command]
    own = {
        option
        for one in commands
        for param in one.params
        if not getattr(param, "hidden", False)
        for option in param.opts
        if option.startswith("--")
    } - {"--config", "--home", "--agent", "--workspace"}
    assert {option for option in own if option not in row} == set()


def test_the_readme_names_no_command_that_does_not_exist() -> None:
    named = set(re.findall(r"`recalld ([a-z]+)", README)) | set(re.findall(r"bin/recalld ([a-z]+)", README))
    assert named <= set(COMMANDS)
    assert set(COMMANDS) <= named


def test_every_exit_code_is_in_the_readme() -> None:
    for code in (0, 1, 2, 3, 4, 130, 141):
        assert f"\n| {code} | " in README


def test_what_the_readme_searches_for_is_in_the_sample_workspace() -> None:
    sample = "\n".join(file.read_text("utf-8") for file in sorted((ROOT / "deploy" / "sample-workspace").rglob("*.md")))
    for words in ("暖气阀门在厨房水槽下面", "FP-131", "245 degrees", "slow disk", "port 8443", "49 kronor"):
        assert words in sample
    shown = (ROOT / "deploy" / "sample-workspace" / "memory" / "2026-11-11.md").read_text("utf-8")
    assert "陈宇 is convinced: she described how she found a slow disk" in shown


def test_the_readme_says_how_a_connection_and_a_call_name_their_session() -> None:
    for name in (SESSION_KEY_HEADER, SESSION_KEY_META, "--session-key"):
        assert f"`{name}`" in README or f'"{name}"' in README or f" {name} " in README, name


def test_the_readmes_settings_for_agents_programs_are_well_formed() -> None:
    section = README.partition("## By the Model Context Protocol")[2].partition("\n## ")[0]
    tables = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", section, flags=re.DOTALL)]
    assert [table["mcp_servers"]["recalld"]["url"] for table in tables] == [
        "http://127.0.0.1:7373/mcp",
        "http://127.0.0.1:7373/mcp/research",
    ]
    [objects] = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", section, flags=re.DOTALL)]
    assert objects["mcp"]["servers"]["recalld"]["args"][0] == "mcp"


def test_the_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        if not target.endswith("RESULTS.md"):  # written by the benchmarks
            assert (ROOT / target).exists(), target


def test_every_promise_of_the_readme_names_tests_that_exist() -> None:
    rows = README.partition("## What it promises")[2].partition("\n## ")[0].splitlines()
    promises = [row.strip("|").split("|") for row in rows if row.startswith("| ")][1:]
    assert len(promises) >= 10
    for promise, held_by in promises:
        tests = re.findall(r"`([^`:]+)::([^`]+)`", held_by)
        assert tests, promise
        for file, test in tests:
            assert f"def {test}(" in (ROOT / file).read_text("utf-8"), f"{file}::{test}"


def _locked(name: str) -> dict[str, str]:
    text = (ROOT / name).read_text("utf-8")
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, flags=re.MULTILINE))


def test_both_locks_agree_and_hold_hashes_only() -> None:
    run, development = _locked("requirements.lock"), _locked("requirements-dev.lock")
    assert run.items() <= development.items()
    for name in ("requirements.lock", "requirements-dev.lock"):
        for entry in re.split(r"\n(?=\S)", (ROOT / name).read_text("utf-8").strip()):
            assert "--hash=sha256:" in entry


def test_the_locks_hold_everything_that_the_package_asks_for() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = package["project"]["optional-dependencies"]
    build = (ROOT / "deploy" / "build-requirements.in").read_text("utf-8").splitlines()
    for file, chosen in (
        ("requirements.lock", ["local", "openai", "mcp"]),
        ("requirements-dev.lock", ["local", "openai", "mcp", "voyage", "e5", "onnx", "otel", "test", "lint"]),
    ):
        asked = [*package["project"]["dependencies"], *(line for line in build if not line.startswith("#"))]
        for extra in chosen:
            asked += extras[extra]
        names = {re.split(r"[<>=!;\[ ]", requirement)[0].lower().replace(".", "-") for requirement in asked}
        assert names - set(_locked(file)) == set()


def _tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:  # an unpacked archive: look at what is there
        skip = {".venv", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "__pycache__"}
        return [file for file in ROOT.rglob("*") if file.is_file() and not skip.intersection(file.parts)]
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [file for file in files if file.is_file()]


#: A registry's or mirror's address, an option that names one, and folders of one person's or build machine.
_FORBIDDEN = re.compile(
    r"https?://[^\s/\"')]*(?:pypi|pythonhosted|registry|mirror|artifactory|nexus|jfrog)"
    r"|--(?:extra-)?index-url|--find-links|^--trusted-host"
    r"|(?<![\w.$~{}/-])/(?:home|Users)/[a-z][\w.-]*/|(?<![\w.$~{}/-])/root/|/\.pyenv/",
    re.MULTILINE,
)


def test_no_tracked_file_names_a_package_host_or_a_folder_of_one_machine() -> None:
    allowed = {"tests/unit/test_docs.py"}  # the patterns themselves
    found = []
    for file in _tracked():
        name = file.relative_to(ROOT).as_posix()
        if name in allowed:
            continue
        try:
            text = file.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{name}: {match.group()}" for match in _FORBIDDEN.finditer(text)]
    assert found == []


def test_only_the_front_door_reads_the_environment() -> None:
    allowed = {"recalld/settings/load.py", "recalld/__main__.py"}
    readers = {
        file.relative_to(ROOT).as_posix()
        for room in ("schemas", "memory", "producers", "workers", "recalld")
        for file in (ROOT / room).rglob("*.py")
        if re.search(r"\bos\.(?:environ|getenv)\b|from os import .*\b(?:environ|getenv)\b", file.read_text("utf-8"))
    }
    assert readers <= allowed
