"""The backend QMD, with a stand-in for its command: what is asked of it, what is read from it, and its failures."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from memory.backends.backend_fallback import FallbackMemory
from memory.backends.qmd import QmdBackend
from memory.backends.qmd_command import MAX_OUTPUT, QmdCommand, QmdFailed, count_of, read_hits
from memory.search.searchable import SearchableMemory
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.settings import AgentSettings, Settings
from schemas.status import Availability
from tests.hostile_texts import is_superlinear, seconds
from tests.transcript_files import message_line
from tests.waiting import wait_until

#: A command that keeps what it is asked in `asked`, and does what `does` says for its first word.
STAND_IN = """#!{python}
import json, os, sys, time
here = {folder!r}
with open(here + "/asked", "a") as file:
    file.write(json.dumps([*sys.argv[1:], os.environ["QMD_CONFIG_DIR"]]) + "\\n")
does = json.load(open(here + "/does"))
exec(does.get(sys.argv[1], ""))
"""

Make = Callable[..., QmdBackend]

#: Settings of the agents whose backends were made.
AGENTS: dict[QmdBackend, AgentSettings] = {}

HIT = {"docid": "#1", "score": 0.46, "file": "qmd://memory-dir-main/a.md", "line": 3}


class StandIn:
    """The stand-in. `does`: the first word of its arguments -> Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.command = str(folder / "qmd")
        Path(self.command).write_text(STAND_IN.format(python=sys.executable, folder=str(folder)))
        Path(self.command).chmod(stat.S_IRWXU)
        self.does()

    def does(self, **what: str) -> None:
        hidden = self.folder / ".does"
        hidden.write_text(json.dumps(what))
        hidden.replace(self.folder / "does")

    def finds(self, *hits: dict[str, Any], before: str = "", after: str = "") -> None:
        self.does(search=f"print({before!r} + {json.dumps(hits)!r} + {after!r})")

    def asked(self, word: str) -> list[list[str]]:
        try:
            lines = (self.folder / "asked").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [asked for line in lines if (asked := json.loads(line))[0] == word]


@pytest.fixture
def qmd(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path / "stand-in")


@pytest.fixture
def backend(tmp_path: Path, qmd: StandIn) -> Iterator[Make]:
    """A function that makes the backend of an agent with notes and a transcript; all are closed at the end."""
    (tmp_path / "workspace" / "memory").mkdir(parents=True)
    (tmp_path / "workspace" / "memory" / "a.md").write_text("one\ntwo\nthree\n", "utf-8")
    (tmp_path / "workspace" / "MEMORY.md").write_text("private\n", "utf-8")
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "s.jsonl").write_bytes(
        message_line("openclaw", "user", "the token ghp_0123456789abcdefghijABCDEFGHIJ012345")
    )
    made = []

    def make(*, extra_paths: tuple[str, ...] = (), **settings: Any) -> QmdBackend:
        # A process begins late on a busy machine.
        limits = {"timeout_ms": 60_000, **settings.pop("limits", {})}
        settings = {"command": qmd.command, "limits": limits, **settings}
        agent = {
            "id": "main",
            "workspace": tmp_path / "workspace",
            "sessions": [str(tmp_path / "sessions")],
            "extra_paths": extra_paths,
            "backend": "qmd",
            "qmd": settings,
            "limits": {"timeout_ms": 600_000},
        }
        whole = Settings.model_validate({"home": tmp_path / "home", "agents": [agent]})
        made.append(QmdBackend(whole, whole.agents[0]))
        AGENTS[made[-1]] = whole.agents[0]
        wait_until(lambda: qmd.asked("update"))
        return made[-1]

    yield make
    for one in made:
        one.close()


class NoMemory(SearchableMemory):
    """An own index that finds nothing."""

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        return SearchAnswer()

    def read_file(self, request: GetRequest) -> GetAnswer:
        return GetAnswer(path=request.path)


def results(backend: QmdBackend, query: str = "gateway", **request: Any) -> list[dict[str, Any]]:
    """Results as the slot shows them."""
    memory = FallbackMemory(AGENTS[backend], lambda: backend, NoMemory)
    answer = asyncio.run(memory.searched(SearchRequest(query=query, **request)))
    return [result.model_dump(exclude_none=True) for result in answer.results]


def test_hits_become_results_with_lines_and_citations(backend: Make, qmd: StandIn) -> None:
    hit = {**HIT, "snippet": "@@ -2,2 @@ (1 before, 0 after)\ntwo\nthree\n"}
    places = ("qmd://other/a.md", "/etc/passwd", "qmd://memory-dir-main/../../x.md")
    no_documents = [{**HIT, "file": place, "snippet": "x"} for place in places]
    qmd.finds(hit, *no_documents, {"odd": 1}, before="noise [1] on stdout\n", after="\nend")
    found = results(backend())
    assert found == [
        {
            "path": "memory/a.md",
            "start_line": 2,
            "end_line": 3,
            "score": 0.46,
            "snippet": "two\nthree",
            "source": "memory",
            "citation": "memory/a.md#L2-L3",
        }
    ]


def test_a_search_is_one_command_in_a_folder_of_the_agent(backend: Make, qmd: StandIn, tmp_path: Path) -> None:
    qmd.finds()
    assert (
        results(backend(search_mode="search"), "--json; rm -rf $HOME\nghp_0123456789abcdefghijABCDEFGHIJ012345") == []
    )
    [asked] = qmd.asked("search")
    assert asked[:4] == ["search", "--json", "-n", "16"]
    assert asked[-3] == "--"
    assert asked[-2].startswith("--json; rm -rf $HOME ")
    assert "0123456789" not in asked[-2]
    assert asked[-1] == str(tmp_path / "home" / "qmd" / "main" / "config" / "qmd")


def test_only_collections_of_the_sources_that_the_session_sees_are_asked(backend: Make, qmd: StandIn) -> None:
    qmd.finds()
    ours = backend()
    group = {"session_key": "agent:main:telegram:group:7"}
    for request in ({}, {"sources": ("memory",)}, group, {"corpus": "sessions"}):
        results(ours, **request)
    notes, transcripts = ["--collection=memory-root-main", "--collection=memory-dir-main"], "--collection=sessions-main"
    collections = [[word for word in asked if word.startswith("--coll")] for asked in qmd.asked("search")]
    assert collections == [[*notes, transcripts], notes, notes, [transcripts]]
    results(ours, sources=("sessions",), **group)
    assert len(qmd.asked("search")) == 4, "no collection is left, and QMD would search all"


QUERIES = {
    "a NUL": ("search", "gate\0way", "gate way"),
    "a line end": ("search", "gate\r\nway", "gate way"),
    "a type": ("query", "intent: gateway: b", "intent  gateway: b"),
    "its length": ("search", "word " * 100_000, " ".join(["word"] * 400)),
}


@pytest.mark.parametrize(("mode", "query", "searched"), QUERIES.values(), ids=QUERIES)
def test_a_query_is_searched_in_spite_of(backend: Make, qmd: StandIn, mode: str, query: str, searched: str) -> None:
    qmd.does(**{mode: "print('[]')"})
    answer = asyncio.run(backend(search_mode=mode).searched(SearchRequest(query=query)))
    assert qmd.asked(mode)[0][-2].strip() == searched
    assert [one.code for one in answer.conditions] == (["query_cut"] if len(query) > 2_000 else [])


@pytest.mark.parametrize("mode", ["vsearch", "query"])
def test_the_search_mode_is_the_command(backend: Make, qmd: StandIn, mode: str) -> None:
    qmd.does(**{mode: f"print({json.dumps([{**HIT, 'snippet': 'two'}])!r})"})
    assert results(backend(search_mode=mode))[0]["start_line"] == 3
    wait_until(lambda: qmd.asked("embed"))


def test_results_stay_within_their_limits_and_sources(backend: Make, qmd: StandIn) -> None:
    hits = [{**HIT, "snippet": f"{number}" * 900, "score": number / 10} for number in range(1, 9)]
    qmd.finds(*hits, {**HIT, "file": "qmd://sessions-main/s.jsonl.md", "snippet": "@@ -3,1 @@\nwords", "score": 0.2})
    ours = backend(limits={"max_results": 4, "max_snippet_chars": 100, "max_injected_chars": 250})
    found = results(ours)
    assert sum(len(one["snippet"]) for one in found) <= 250
    assert len(results(ours, min_score=0.75)) == 1
    assert [(one["path"], one["start_line"]) for one in results(ours, sources=("sessions",))] == [
        ("sessions/s.jsonl", 1)
    ]


def test_a_group_gets_no_private_transcript_and_finds_its_own_behind_many(
    backend: Make, qmd: StandIn, tmp_path: Path
) -> None:
    own = {"agent:main:telegram:group:7": {"sessionId": "own"}}
    (tmp_path / "sessions" / "sessions.json").write_text(json.dumps(own))
    (tmp_path / "workspace" / "memory" / "b.md").write_text("- Transcript: sessions/s.jsonl\n", "utf-8")
    private = ["memory-root-main/MEMORY.md", "memory-dir-main/b.md", *["sessions-main/s.jsonl.md"] * 50]
    places = [*private, "sessions-main/own.jsonl.md"]
    hits = json.dumps([{**HIT, "file": f"qmd://{place}", "snippet": "words"} for place in places])
    qmd.does(search=f"print(json.dumps(json.loads({hits!r})[: int(sys.argv[4])]))")
    ours = backend(limits={"max_results": 100})
    wanted: dict[str, Any] = {"max_results": 3, "session_key": "agent:main:telegram:group:7"}
    assert [one["path"] for one in results(ours, **wanted)] == ["sessions/own.jsonl"]
    of_owner = {one["path"] for one in results(ours, max_results=60)}
    assert of_owner == {"MEMORY.md", "memory/b.md", "sessions/s.jsonl", "sessions/own.jsonl"}


CRASH = """/x/q.js:7
    throw new Error("token ghp_0123456789abcdefghijABCDEFGHIJ012345 ...");
    ^

SqliteError: database is locked, token ghp_0123456789abcdefghijABCDEFGHIJ012345
    at open (/x/q.js:7:3)

Node.js v26.10.0
"""
NO_ERROR = "(node:7) ExperimentalWarning: strange\nCollection not found: x\n    at open (/x/q.js:7:3)\n"

FAILURES = {
    "it fails": ("sys.stderr.write('bad index'); sys.exit(3)", "qmd search failed: bad index"),
    "it crashes": (
        f"sys.stderr.write({CRASH!r}); sys.exit(1)",
        "search failed: SqliteError: database is locked, token [^0-9]+$",
    ),
    "no line is an error": (f"print({NO_ERROR!r}); sys.exit(1)", "search failed: Collection not found: x$"),
    "it fails without a word": ("sys.exit(3)", "exit code 3"),
    "it is killed": ("print('Searching', flush=True); os.kill(os.getpid(), 9)", "search failed: exit code -9"),
    "it prints something else": ("print('hello')", "something else than results"),
    "it prints too much": (f"print('x' * {MAX_OUTPUT + 1})", "more than 200,000 characters"),
    "it complains too much": (f"sys.stderr.write('x' * {MAX_OUTPUT + 1})", "more than 200,000 characters"),
    "it takes too long": ("time.sleep(600)", "timed out"),
    "its child takes too long": ("import subprocess; subprocess.run(['sleep', '600'])", "timed out"),
}


@pytest.mark.parametrize(("does", "reason"), FAILURES.values(), ids=FAILURES)
def test_a_search_fails_with_a_reason_when(backend: Make, qmd: StandIn, does: str, reason: str) -> None:
    qmd.does(search=does)
    ours = backend(limits={"timeout_ms": 1_500} if "sleep" in does else {})
    with pytest.raises(QmdFailed, match=reason):
        asyncio.run(ours.searched(SearchRequest(query="gateway")))


#: What is printed before the hits may have brackets, too.
NOISE = ["", "[info] loaded\n", "[1/3] looking\n", "[\x1b[0m 50%] ", '["a", ', "[[x]] "]


@pytest.mark.parametrize(
    ("printed", "snippets"),
    [
        *((nothing, []) for nothing in ("", "No results found.", "[]", "note\n[]\n")),
        *((f"{noise}{json.dumps([{**HIT, 'snippet': '[No results.'}])}", ["[No results."]) for noise in NOISE),
    ],
)
def test_hits_are_read_below_noise_and_nothing_found_is_no_failure(printed: str, snippets: list[str]) -> None:
    assert [hit.snippet for hit in read_hits(printed)] == snippets


def test_a_command_that_is_not_installed_is_told(backend: Make) -> None:
    with pytest.raises(QmdFailed, match="not installed; npm has it"):
        backend(command="no-such-command-here")


def test_the_index_gets_notes_extra_paths_and_transcripts_without_secrets(
    backend: Make, qmd: StandIn, tmp_path: Path
) -> None:
    (tmp_path / "vault").mkdir()
    qmd.does(status="print('Documents\\n  Total:    3 files indexed')")
    ours = backend(extra_paths=(str(tmp_path / "vault"),), update={"debounce_seconds": 0})
    wait_until(lambda: ours.status().updated_at is not None)
    folder = tmp_path / "home" / "qmd" / "main"
    written = json.loads((folder / "config" / "qmd" / "index.yml").read_text())["collections"]
    assert written == {
        "memory-root-main": {"path": str(tmp_path / "workspace"), "pattern": "{MEMORY,memory,USER}.md"},
        "memory-dir-main": {"path": str(tmp_path / "workspace" / "memory"), "pattern": "**/*.md"},
        "extra-1-main": {"path": str(tmp_path / "vault"), "pattern": "**/*.md"},
        "sessions-main": {"path": str(folder / "sessions"), "pattern": "**/*.md"},
    }
    export = folder / "sessions" / "s.jsonl.md"
    assert export.read_text("utf-8").startswith("# Session s.jsonl\n\n[")
    assert "ghp_" not in export.read_text("utf-8")
    status = ours.status()
    assert (status.backend, status.provider, status.files, status.chunks, status.problem) == ("qmd", "qmd", 3, 3, None)
    assert not ours.probe_vector_availability().available
    (tmp_path / "sessions" / "s.jsonl").unlink()
    ours.sync()
    wait_until(lambda: not export.exists(), what="a transcript that is gone leaves the index")


@pytest.mark.parametrize(("mode", "step"), [("search", "update"), ("vsearch", "embed"), ("search", "cleanup")])
def test_a_failed_update_is_tried_again_and_a_condition_of_answers_and_processes(
    backend: Make, qmd: StandIn, tmp_path: Path, mode: str, step: str
) -> None:
    folder = tmp_path / "home" / "qmd" / "main"
    (folder / "cache" / "qmd").mkdir(parents=True)
    (folder / "cache" / "qmd" / "index.sqlite").touch()
    works = {mode: "print('[]')"}
    qmd.does(**works, **{step: "sys.stderr.write('database is locked'); sys.exit(1)"})
    ours = backend(search_mode=mode, update={"debounce_seconds": 0})
    reason = f"{qmd.command} {step} failed: database is locked"
    wait_until((folder / "failure").exists)
    wait_until(lambda: ours.status().problem == reason)
    if step == "embed":
        assert ours.status().vectors == ours.probe_vector_availability() == Availability(available=False, reason=reason)
    wait_until(lambda: (folder / "failure").read_text() == reason)
    for updates in (2, 3):
        ours.sync()
        wait_until(lambda wanted=updates: len(qmd.asked("update")) >= wanted)  # type: ignore[misc]
    assert ours.status().problem == reason, "an update that works does not hide it"
    [condition] = asyncio.run(ours.searched(SearchRequest(query="gateway"))).conditions
    assert (condition.code, condition.params) == ("backend_fails", {"reason": reason})
    if step == "update":
        qmd.does(**works)
        ours.sync()
        wait_until(lambda: ours.status().problem is None and ours.status().updated_at is not None)
        wait_until(lambda: (folder / "failure").read_text() == "")


def test_probes_ask_qmd_and_vectors_count_once_they_are_embedded(backend: Make, qmd: StandIn, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waits = f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
    qmd.does(vsearch="print('[]')", embed=waits, status="print('  Vectors:  0 embedded')")
    ours = backend(search_mode="vsearch")
    wait_until(lambda: qmd.asked("embed"))
    assert "not embedded yet" in str(ours.probe_vector_availability().reason)
    gate.touch()
    wait_until(lambda: ours.status().vectors == Availability(available=True))
    assert "no embedded chunk" in str(ours.probe_vector_availability().reason)
    assert ours.probe_embedding_availability().available
    assert qmd.asked("vsearch")[-1][-2] == "memory"
    qmd.does(vsearch="sys.exit('no model')", status="print('  Vectors:  7 embedded')")
    assert ours.probe_vector_availability().available
    assert ours.probe_embedding_availability().reason == f"{qmd.command} vsearch failed: no model"


def test_a_backend_that_is_closed_in_an_update_leaves_no_failure(backend: Make, qmd: StandIn, tmp_path: Path) -> None:
    qmd.does(update="time.sleep(600)")
    ours = backend()
    wait_until(lambda: qmd.asked("update"))
    ours.close()
    threads = [thread for thread in threading.enumerate() if thread.name == "qmd-main"]
    wait_until(lambda: not any(thread.is_alive() for thread in threads))
    assert not (tmp_path / "home" / "qmd" / "main" / "failure").exists()


def test_a_note_is_pending_until_an_update_took_it_in_and_a_search_waits_for_that(
    backend: Make, qmd: StandIn, tmp_path: Path
) -> None:
    gate, note = tmp_path / "gate", tmp_path / "workspace" / "memory" / "b.md"

    def asked(**request: Any) -> tuple[int, bool | None]:
        answer = asyncio.run(ours.searched(SearchRequest(query="gateway", **request)))
        return answer.pending.documents, answer.stale

    qmd.does(search="print('[]')")
    ours = backend(update={"debounce_seconds": 0})
    wait_until(lambda: ours.status().updated_at is not None)
    assert asked() == (0, None)
    qmd.does(search="print('[]')", update=f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)")
    note.write_text("fresh\n", "utf-8")
    assert asked(wait_ms=0) == (1, True)
    wait_until(lambda: len(qmd.asked("update")) == 2)
    ours.sync()  # as the search does, unless it begins after the gate opened
    threading.Timer(2.0, gate.touch).start()
    assert asked(wait_ms=60_000) == (0, None)
    wait_until(lambda: len(qmd.asked("status")) == 3, what="the update that was asked for meanwhile")
    qmd.does(search="print('[]')", update="sys.exit(1)")
    (tmp_path / "workspace" / "MEMORY.md").unlink()
    os.utime(note, (1, 1))
    assert asked(wait_ms=0) == (2, True), "one is gone, and one has an earlier time than the update"


def test_a_transcript_is_pending_once_it_is_quiet_and_no_late_update_is_waited_for(
    backend: Make, qmd: StandIn, tmp_path: Path
) -> None:
    qmd.does(search="print('[]')")
    ours = backend(update={"debounce_seconds": 3_600})
    wait_until((tmp_path / "home" / "qmd" / "main" / "failure").exists)
    answers = []
    for modified_at in (time.time() + 3_600, 1.0):
        os.utime(tmp_path / "sessions" / "s.jsonl", (modified_at, modified_at))
        answers.append(asyncio.run(ours.searched(SearchRequest(query="gateway", wait_ms=60_000))))
    assert [(answer.pending.documents, answer.stale) for answer in answers] == [(0, None), (1, True)]
    assert answers[1].took_ms < 60_000


def test_an_index_that_changed_is_cleaned_up_after_the_update(backend: Make, qmd: StandIn, tmp_path: Path) -> None:
    index = tmp_path / "home" / "qmd" / "main" / "cache" / "qmd" / "index.sqlite"
    opened = (
        "path = os.environ['XDG_CACHE_HOME'] + '/qmd/index.sqlite'; os.makedirs(os.path.dirname(path), exist_ok=True)"
    )
    qmd.does(update=f"{opened}; open(path, 'w').write('deleted words')", cleanup=f"{opened}; open(path, 'w').write('')")
    ours = backend()
    wait_until(lambda: ours.status().updated_at is not None and qmd.asked("cleanup"))
    wait_until(lambda: index.read_text() == "")


def test_files_are_counted_from_what_the_command_prints_in_time_linear_in_its_size() -> None:
    status = "QMD Status\n\nDocuments\n  Total:    12 files indexed\n  Vectors:  7 embedded\n"
    assert count_of("Total", status) == 12
    assert count_of("Total", "") is None
    assert not is_superlinear(partial(count_of, "Total"), lambda size: "\n" * size, 40_000)


@pytest.mark.long
def test_a_command_that_is_ended_leaves_no_process(tmp_path: Path, qmd: StandIn) -> None:
    pid = tmp_path / "pid"
    child = f"child = subprocess.Popen(['sleep', '600']); open({str(pid)!r}, 'w').write(str(child.pid))"
    qmd.does(search=f"import subprocess; {child}; time.sleep(600)")
    with pytest.raises(QmdFailed, match="timed out"):
        QmdCommand(qmd.command, tmp_path / "folder", tmp_path).run("search", timeout_seconds=6.0)

    def is_gone() -> bool:
        try:
            os.kill(int(pid.read_text()), 0)
        except ProcessLookupError:
            return True
        return "Z" in Path(f"/proc/{pid.read_text()}/stat").read_text().split(")")[-1]

    wait_until(is_gone)


def test_brackets_cost_little_more_than_an_answer_of_their_size() -> None:
    def read(printed: str) -> None:
        with suppress(QmdFailed):
            read_hits(printed)

    answer = json.dumps([{**HIT, "snippet": "a word " * 20}] * 1_000)[:MAX_OUTPUT]
    usual = min(seconds(read, answer) for _ in range(3))
    for text in ("[", '[{"a":', '["[', "[1, ", "[\n"):
        assert min(seconds(read, text * (MAX_OUTPUT // len(text))) for _ in range(3)) < 20 * usual, text
