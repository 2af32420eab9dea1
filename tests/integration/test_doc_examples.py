"""The examples of the documentation, run as they stand there; only the port is the test's."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory.search.tool_definitions import TOOLS
from schemas.settings import Settings
from tests.chat_server import ChatServer
from tests.daemon import REPOSITORY, clean_environment
from tests.documentation import PAGES, blocks, commands
from tests.forked import command_line
from tests.serving import indexed_and_running
from tests.transcript_files import transcript
from tests.waiting import wait_until

PYTHON = [block for page in PAGES for block in blocks(page, "python")]
ADDRESS = "http://127.0.0.1:7373"


@pytest.fixture
def service(settings: Settings, workspace: Path) -> Iterator[httpx.Client]:
    shutil.copytree(REPOSITORY / "deploy" / "sample-workspace", workspace, dirs_exist_ok=True)
    with indexed_and_running(settings) as client:
        yield client


def snippet(words: str) -> str:
    """Return the longest block of Python that has these words: the README's is the beginning of another page's."""
    return max((block.text for block in PYTHON if words in block.text), key=len)


def run(code: str, service: httpx.Client, environment: Mapping[str, str] | None = None) -> str:
    """Return what it prints."""
    assert ADDRESS in code
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code.replace(ADDRESS, str(service.base_url).rstrip("/"))],
        cwd=REPOSITORY,
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_python_snippet_is_run_by_a_test() -> None:
    for block in PYTHON:
        compile(block.text, block.page, "exec")
        assert sum(words in block.text for words in ("with Client(", "AsyncClient", "openai")) == 1


def test_the_clients_print_what_they_found_and_read(service: httpx.Client) -> None:
    [block] = [block for block in PYTHON if block.page == "README.md"]
    assert "8443" in run(block.text, service)
    printed = run(snippet("with Client(url"), service)
    assert "8443" in printed
    assert (REPOSITORY / "deploy" / "sample-workspace" / "MEMORY.md").read_text("utf-8").splitlines()[0] in printed
    lines = run(snippet("AsyncClient"), service).splitlines()
    assert [line.split()[0] for line in lines] == ["hybrid", "hybrid"]
    assert all(".md" in line for line in lines)


def test_the_tool_loop_searches_reads_on_and_answers(service: httpx.Client) -> None:
    def told(messages: list[dict[str, Any]], number: int) -> dict[str, Any]:
        """The content of a tool's message, counted from the end."""
        message = messages[number]
        assert message["role"] == "tool"
        answer: dict[str, Any] = json.loads(message["content"])
        return answer

    def clumsy(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
        assert [message["role"] for message in messages] == ["system", "user"]
        return [("memory_search", '{"query": "gateway'), ("memory_remember", "{}"), ("memory_search", '{"q": "x"}')]

    def searches(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
        errors = [told(messages, number)["error"] for number in (-3, -2, -1)]
        assert ["JSON" in errors[0], "memory_remember" in errors[1], " q;" in errors[2]] == [True] * 3
        assert [message["tool_call_id"] for message in messages[-3:]] == ["call_0_0", "call_0_1", "call_0_2"]
        return [("memory_search", '{"query": "gateway port 8443", "maxResults": 2}')]

    def reads_on(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
        hit = next(hit for hit in told(messages, -1)["results"] if "8443" in hit["snippet"])
        assert hit["citation"]
        return [("memory_get", json.dumps({"path": hit["path"], "from": hit["startLine"], "lines": 40}))]

    def answers(messages: list[dict[str, Any]]) -> str:
        [line] = [line for line in told(messages, -1)["text"].splitlines() if "8443" in line][:1]
        return f"I remember: {line}"

    with ChatServer([clumsy, searches, reads_on, answers]) as model:
        printed = run(snippet("openai"), service, {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "sk-none"})
    assert printed.startswith("I remember: ")
    assert "8443" in printed
    assert len(model.requests) == 4
    for request in model.requests:
        assert [tool["function"]["name"] for tool in request["tools"]] == list(TOOLS)


class Machine:
    """A person's machine on which the commands of a page are typed: a checkout, a home folder, and what is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user = folder / "user"
        shutil.copytree(REPOSITORY / "deploy" / "sample-workspace", folder / "deploy" / "sample-workspace")
        session = self.user / ".codex" / "sessions" / "2026" / "02" / "03" / "rollout-2026-02-03T09-00-00-a.jsonl"
        session.parent.mkdir(parents=True)
        session.write_bytes(transcript("codex", turns=4))
        program = folder / ".venv" / "bin" / "recalld"
        program.parent.mkdir(parents=True)
        self.environment = clean_environment(
            {
                "HOME": str(self.user),
                "PATH": f"{program.parent}:{os.environ['PATH']}",
                "RECALLD_HOME": str(folder / "home"),
                "RECALLD_SERVICE__PORT": "0",
                "COLUMNS": "100",
            }
        )
        others = shlex.join(command_line([], self.environment))
        program.write_text(
            f'#!/bin/sh\nexport PYTHONPATH="{REPOSITORY}"\n'
            f'[ "$1" != up ] || exec "{sys.executable}" -m recalld "$@"\nexec {others} "$@"\n'
        )
        program.chmod(0o755)
        self.up: subprocess.Popen[str] | None = None
        #: Name of the note that was written last and is still there: a search must find it.
        self.written = ""

    def start(self, command: str) -> None:
        """Start everything, by `make up` or `recalld up`, and wait until it answers."""
        self.stop()
        self.written = ""
        workspace = re.search(r"(?:WORKSPACE=|--workspace )(\S+)", command)
        where = workspace[1] if workspace else "deploy/sample-workspace"
        if not (notes := self.folder / where.replace("~", self.environment["HOME"])).exists():
            notes.mkdir(parents=True)
            (notes / "deploy.md").write_text("# Deploys\n\nStaging uses port 8080.\n", "utf-8")
        with (self.folder / "up.out").open("w") as printed:
            self.up = subprocess.Popen(
                ["bash", "-c", f"exec recalld up --workspace {where}"],
                cwd=self.folder,
                env=self.environment,
                stdout=printed,
                stderr=subprocess.STDOUT,
                text=True,
            )
        wait_until(lambda: "Ctrl-C" in (self.folder / "up.out").read_text("utf-8"), what="up answers")

    def stop(self) -> None:
        """Press Ctrl-C."""
        if self.up is not None:
            self.up.send_signal(signal.SIGINT)
            assert self.up.wait(timeout=120) == 0

    def type(self, command: str, shown: str) -> None:
        """Run a command, again while what it shows is not there yet.

        Raises:
            AssertionError: it fails, or does not come to show that.
        """
        words = shlex.split(command)
        expected = [_as_pattern(line) for line in shown.splitlines()]
        if "search" in words:
            expected.append(re.escape(self.written))
        last = ""

        def done() -> bool:
            nonlocal last
            ended_well, last = self._request(words) if words[0] == "curl" else self._run(command)
            return ended_well and all(re.search(pattern, last) for pattern in expected)

        try:
            wait_until(done)
        except AssertionError:
            raise AssertionError(f"{command}\n{last}") from None
        if moved := re.match(r"echo .*> (\S+)$|mv \S+ (\S+)$", command):
            self.written = Path(moved[1] or moved[2]).name
        elif words[0] == "rm":
            self.written = ""

    def _run(self, command: str) -> tuple[bool, str]:
        ended = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120
        )
        fine = {0, 4} if "recalld doctor" in command else {0}  # it may find something on this machine
        return ended.returncode in fine, ended.stdout + ended.stderr

    def _request(self, words: list[str]) -> tuple[bool, str]:
        port = json.loads((self.folder / "home" / "run" / "service.json").read_text())["port"]
        [url] = [word for word in words if word.startswith("http")]
        body = words[words.index("-d") + 1] if "-d" in words else None
        headers = {"Content-Type": "application/json"} if body else {}
        answer = httpx.request(
            "POST" if body else "GET",
            url.replace(ADDRESS, f"http://127.0.0.1:{port}"),
            content=body,
            headers=headers,
            timeout=60,
        )
        return answer.status_code == 200, answer.text


def _as_pattern(line: str) -> str:
    """Return a pattern for a printed line; its score may differ."""
    return re.sub(r"\d\\\.\d\d$", r"\\d\\.\\d\\d", re.escape(line))


def _type_all(machine: Machine, page: str) -> None:
    found = blocks(page)
    for block, after in zip_longest(found, found[1:]):
        if block.language != "sh":
            continue
        typed = list(commands(block))
        shown = after.text.replace("    ...\n", "") if after is not None and after.language == "text" else ""
        for number, command in enumerate(typed, 1):
            if command.runs_on:
                machine.start(command.text)
            elif not command.needs:
                machine.type(command.text, shown if number == len(typed) else "")


#: Pages that begin with starting everything.
STARTING = ("README.md", "docs/quickstart.md")


@pytest.mark.parametrize("page", STARTING)
def test_a_newcomers_commands_do_what_the_page_says(page: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    try:
        _type_all(machine, page)
    finally:
        machine.stop()


@pytest.mark.long
def test_the_commands_of_all_other_pages_do_what_they_say(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    try:
        machine.start("make up")
        for page in PAGES:
            if page not in STARTING and not any(
                command.runs_on for block in blocks(page, "sh") for command in commands(block)
            ):
                _type_all(machine, page)
    finally:
        machine.stop()
