"""Truth of the documents: settings, commands, exit codes, locks, and no word about one machine."""

from __future__ import annotations

import importlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from recalld.cli import COMMANDS, LazyGroup, root
from recalld.commands.config import effective
from recalld.settings.keys import agent_keys, top_level_keys
from recalld.settings.load import load
from schemas.settings import Settings
from tests.doc_tables import with_parts
from tests.documentation import PAGES, blocks, commands
from tests.settings_docs import example_toml

ROOT = Path(__file__).parents[2]
README = PAGES["README.md"]
DOCUMENTATION = "\n".join(PAGES.values())
EXAMPLE = ROOT / "deploy" / "recalld.example.toml"


def test_every_setting_is_described_in_the_schema() -> None:
    keys = [*top_level_keys().values(), *agent_keys().values()]
    missing = {key.name for key in keys if not key.description and not key.name.startswith("credentials.")}
    assert missing <= {"agents"}


@pytest.mark.parametrize("page", ["docs/settings.md", "docs/commands.md", "docs/troubleshooting.md"])
def test_what_a_page_lists_from_the_code_is_fresh(page: str) -> None:
    assert with_parts(PAGES[page]) == PAGES[page], "run `make docs`"


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
def test_every_command_is_documented_with_its_options(name: str) -> None:
    section = PAGES["docs/commands.md"].partition(f"### `recalld {name}")[2]
    others = "|".join(other for other in COMMANDS if other != name)
    section = re.split(rf"### `recalld (?:{others})\b", section)[0]
    own = {
        option
        for one in _with_those_below(_command(name))
        for param in one.params
        if not getattr(param, "hidden", False)
        for option in param.opts
        if option.startswith("--")
    } - {"--config", "--home", "--agent"}
    assert {option for option in own if option not in section} == set()


def _command(name: str) -> click.Command:
    assert isinstance(root, LazyGroup)
    command = root.get_command(None, name)  # type: ignore[arg-type] - the context is not used
    assert command is not None
    return command


def _with_those_below(command: click.Command) -> list[click.Command]:
    return [command, *getattr(command, "commands", {}).values()]


def test_every_command_line_in_the_documentation_could_be_typed() -> None:
    typed = [command.text for page in PAGES for block in blocks(page, "sh") for command in commands(block)]
    typed += re.findall(r"`(recalld [a-z][^`]*)`", DOCUMENTATION)
    named = set()
    for words in (text.split() for text in typed):
        if words[0].endswith("recalld"):
            name = next((word for word in words if word in COMMANDS), None)
            if name is None:
                assert words[1:] == ["--version"]
                continue
            named.add(name)
            given = {word.split("=")[0] for word in words if word.startswith("--")}
            known = {
                option for one in _with_those_below(_command(name)) for param in one.params for option in param.opts
            }
            assert given <= known | {"--help"}, words
    assert named == set(COMMANDS)


def test_every_exit_code_is_documented() -> None:
    for code in (0, 1, 2, 3, 4, 130, 141):
        assert f"\n| {code} | " in PAGES["docs/commands.md"]


def test_every_setting_that_a_page_names_exists() -> None:
    known = {*top_level_keys(), *(f"agents.{key}" for key in agent_keys())}
    sections = {key.split(".")[0] for key in known if "." in key}
    for page, text in PAGES.items():
        for name in re.findall(
            r"`([a-z_]+(?:\.[a-z_*]+)+)(?: = [^`]*)?`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        ):
            if name.split(".")[0] in sections and not name.endswith((".py", ".md", ".toml", ".json")):
                prefix = name.removesuffix("*")
                assert name in known or any(key.startswith(f"{prefix.removesuffix('.')}.") for key in known), (
                    page,
                    name,
                )


def test_every_settings_file_in_the_documentation_is_valid(tmp_path: Path) -> None:
    for page in PAGES:
        for block in blocks(page, "toml"):
            if "mcp_servers" not in tomllib.loads(block.text):
                file = tmp_path / "recalld.toml"
                file.write_text(block.text, "utf-8")
                load(config=str(file), home=str(tmp_path), environment={})


@pytest.mark.parametrize("page", list(PAGES))
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", PAGES[page]):
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}, (
                anchor
            )


def test_every_folder_and_module_that_the_architecture_names_exists() -> None:
    named = re.findall(
        r"`((?:schemas|memory|producers|workers|recalld|deploy|tests)/[\w./-]*)`", PAGES["docs/architecture.md"]
    )
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "row", [row for row in PAGES["docs/architecture.md"].splitlines() if re.search(r"`[A-Z_]{4,}` \(", row)]
)
def test_every_wait_that_the_architecture_names_is_that_of_its_module(row: str) -> None:
    _, _, owner, length, _ = row.split("|")
    [path, *_] = re.findall(r"`([\w/]+)\.py`", owner)
    module = importlib.import_module(path.replace("/", "."))
    for name, first, last in re.findall(r"`([A-Z_]{4,})` \(([\d.]+)(?: to ([\d.]+))?\)", length):
        assert getattr(module, name) == ((float(first), float(last)) if last else float(first)), name


def test_the_readme_names_the_commands_that_run_and_test_everything() -> None:
    lines = README.splitlines()
    assert {"make up", "make test"} <= {line.partition("#")[0].strip() for line in lines}
    assert any("`chromium`" in line for line in lines)


def test_every_page_is_reached_from_the_readme() -> None:
    assert {page for page in PAGES if page not in {"README.md"}} <= set(re.findall(r"\]\(([^)#]+)", README))


def test_every_promise_names_tests_that_exist() -> None:
    promises = [row.strip("|").split("|") for row in PAGES["docs/promises.md"].splitlines() if row.startswith("| ")][1:]
    assert len(promises) >= 10
    for promise, held_by in promises:
        tests = re.findall(r"`([^`:]+)::([^`]+)`", held_by)
        assert tests, promise
        for file, test in tests:
            assert f"def {test}(" in (ROOT / file).read_text("utf-8"), f"{file}::{test}"


def _locked(name: str) -> dict[str, str]:
    text = (ROOT / "deploy" / name).read_text("utf-8")
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, flags=re.MULTILINE))


def test_the_locks_agree_and_hold_hashes_only() -> None:
    names = ("requirements.lock", "requirements-image.lock", "requirements-dev.lock")
    run, image, development = map(_locked, names)
    assert run.items() <= image.items() <= development.items()
    for name in names:
        for entry in re.split(r"\n(?=\S)", (ROOT / "deploy" / name).read_text("utf-8").strip()):
            assert "--hash=sha256:" in entry


def test_the_locks_hold_everything_that_the_package_asks_for() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = package["project"]["optional-dependencies"]
    build = (ROOT / "deploy" / "build-requirements.in").read_text("utf-8").splitlines()
    for file, chosen in (
        ("requirements.lock", ["local", "openai", "mcp"]),
        ("requirements-image.lock", ["fleet", "voyage"]),
        ("requirements-dev.lock", ["fleet", "local", "openai", "mcp", "voyage", "e5", "onnx", "otel", "test", "lint"]),
    ):
        asked = [*package["project"]["dependencies"], *(line for line in build if not line.startswith("#"))]
        for extra in chosen:
            asked += extras[extra]
        names = {re.split(r"[<>=!;\[ ]", requirement)[0].lower().replace(".", "-") for requirement in asked}
        assert names - set(_locked(file)) == set()


def test_the_notice_names_every_locked_package() -> None:
    named = set(re.findall(r"[a-z0-9][a-z0-9-]*", (ROOT / "NOTICE").read_text("utf-8")))
    assert set(_locked("requirements-image.lock")) - named == set()


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
