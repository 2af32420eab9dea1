"""The whole room: real files, real watcher, a queue that remembers."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memory.documents.agent_files import AgentFiles
from memory.store.reader import StoreReader
from producers import run as producing
from producers.hook_events import Hook
from producers.reconciler import Indexes
from producers.run import run_producers
from producers.spool import write_event, write_hook
from schemas.conditions import OF_FILES, Condition, ConditionCode
from schemas.errors import RecalldError
from schemas.ports import Event
from schemas.settings import AgentSettings, Context, Settings, Sync, SyncSessions
from tests.openclaw_database import OpenClawDatabase
from tests.raw_server import HANG, answer, raw_server
from tests.recording import RecordingConditions, RecordingInbox, RecordingQueue, RememberedFiles, as_reader
from tests.transcript_files import compaction_line
from tests.waiting import wait_until


def paths_refused(house: House) -> object:
    refused = house.troubles.open.get((ConditionCode.EVENT_PATHS_REFUSED, "main"))
    return refused.params["paths"] if refused is not None else None


class House:
    """Producers that run in a thread, and what they said."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.queue = RecordingQueue()
        self.troubles = RecordingConditions()
        self.inbox = RecordingInbox()
        self.stop = threading.Event()
        self.ready = threading.Event()
        self.index: dict[str, RememberedFiles | None] = {}
        self.index_error: RecalldError | None = None
        self.during_comparison: Callable[[], object] | None = None
        self.agents: list[AgentSettings] = []
        self.thread: threading.Thread | None = None

    def agent(self, name: str = "main", *, folders: tuple[str, ...] = (), **sync: Any) -> AgentSettings:
        """An agent whose index knows everything that is on disk when the producers start.

        `folders` hold its transcripts, relative to the root.
        """
        workspace = self.root / name
        name = workspace.name
        (workspace / "memory").mkdir(parents=True, exist_ok=True)
        sync = {"watch_debounce_ms": 30, **sync}
        sessions = tuple(str(self.root / folder) for folder in folders)
        agent = AgentSettings(id=name, workspace=workspace, sessions=sessions, sync=Sync(**sync))
        self.agents.append(agent)
        return agent

    def remember(self) -> None:
        for agent in self.agents:
            self.index[agent.id] = RememberedFiles(dict(AgentFiles(agent).scan().documents))

    def write(self, path: str, text: str = "text") -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def file_conditions(self) -> list[Condition]:
        """Return the conditions of the files of the agent "main" and of their comparison."""
        codes = (*OF_FILES, ConditionCode.FILES_NOT_COMPARED)
        return [one for (code, agent), one in self.troubles.open.items() if agent == "main" and code in codes]

    def start(self) -> None:
        settings = Settings(home=self.home, agents=tuple(self.agents))
        self.thread = threading.Thread(target=self._run, args=(settings,))
        self.thread.start()
        assert self.ready.wait(60)

    def _run(self, settings: Settings) -> None:
        run_producers(
            settings,
            self.queue,
            self.inbox,
            self.troubles,
            self.stop,
            Indexes(self._indexed),
            on_ready=self.ready.set,
            poll_interval_seconds=0.02,
        )

    def _indexed(self, agent: AgentSettings) -> StoreReader | None:
        if self.during_comparison is not None:
            self.during_comparison()
        if self.index_error is not None:
            raise self.index_error
        return as_reader(self.index.get(agent.id))

    def end(self) -> None:
        self.stop.set()
        if self.thread is not None:
            self.thread.join(60)
            assert not self.thread.is_alive()

    def watch_json(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.home / "run/watch.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def wait_for(self, agent: str, *paths: str) -> None:
        wait_until(lambda: set(paths) <= set(self.queue.marked(agent)), what=f"{paths}, not {self.queue.marked(agent)}")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.end()


def test_a_change_during_the_first_comparison_is_not_missed(house: House) -> None:
    house.agent(interval_minutes=0)
    house.write("main/memory/deep/a.md")
    house.remember()
    # The index is opened after the files were looked at.
    house.during_comparison = lambda: house.write("main/memory/deep/a.md", "written in between")
    house.start()
    house.wait_for("main", "memory/deep/a.md")


def test_events_from_the_spool_are_done_at_the_start_and_later(house: House) -> None:
    house.agent(watch=False)
    early, late = house.write("main/memory/early.md"), house.write("main/memory/late.md")
    house.remember()
    write_event(house.home, Event("changed", "main", (str(early),)))
    house.start()
    house.wait_for("main", "memory/early.md")
    write_event(house.home, Event("changed", "main", (str(late),)))
    house.wait_for("main", "memory/late.md")
    (house.home / "spool/broken.json").write_text("{")
    wait_until(lambda: (ConditionCode.SPOOL_FILES_SET_ASIDE, "*") in house.troubles.open)


def test_lost_file_events_lead_to_a_comparison_of_all_agents(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    listeners: list[Any] = []
    real = producing.EventRouter.start

    def start(self: producing.EventRouter, *arguments: Any) -> None:
        listeners.append(self)
        real(self, *arguments)

    monkeypatch.setattr(producing.EventRouter, "start", start)
    for name in ("main", "other"):
        house.agent(name)
        house.write(f"{name}/memory/a.md")
    house.remember()
    house.start()
    for name in ("main", "other"):
        house.index[name] = RememberedFiles({})
    for name in ("main", "other"):
        listeners[0].on_uncertain(name, events_lost=True)
    house.wait_for("main", "memory/a.md")
    house.wait_for("other", "memory/a.md")
    wait_until(lambda: house.watch_json().get("main", {}).get("overflows") == 1)
    wait_until(lambda: (ConditionCode.WATCH_OVERFLOWED, "main") not in house.troubles.open)


def test_while_the_queue_is_away_nothing_is_lost_and_all_is_compared_afterwards(house: House) -> None:
    house.agent()
    house.write("main/memory/old.md")
    house.remember()
    house.start()
    house.queue.available = False
    house.write("main/memory/a.md")
    wait_until(lambda: (ConditionCode.CHANGES_KEPT, "*") in house.troubles.open)
    house.index["main"] = RememberedFiles({})
    house.queue.available = True
    house.wait_for("main", "memory/a.md", "memory/old.md")
    wait_until(lambda: (ConditionCode.CHANGES_KEPT, "*") not in house.troubles.open)


# Transcripts -------------------------------------------------------------------------------------------

LINE = '{"role":"user","content":"hello"}\n'
PATIENT = SyncSessions(quiet_seconds=600)


def append(path: Path, text: str = LINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        out.write(text)
    return path


def test_a_session_folder_that_comes_later_is_noticed_and_watched(house: House) -> None:
    house.agent(folders=("later/agent/sessions",), sessions=SyncSessions(quiet_seconds=0.05))
    house.remember()
    house.start()
    assert house.troubles.open[ConditionCode.SESSIONS_FOLDER_MISSING, "main"].subject.endswith("later/agent/sessions")
    path = append(house.root / "later/agent/sessions/a.jsonl")
    house.wait_for("main", "sessions/a.jsonl")
    wait_until(lambda: not house.file_conditions())
    house.index["main"] = RememberedFiles(dict(AgentFiles(house.agents[0]).scan().documents))
    house.queue.clear()
    append(path)
    house.wait_for("main", "sessions/a.jsonl")


@pytest.mark.long
def test_a_workspace_swapped_behind_its_link_is_compared_watched_and_said(house: House) -> None:
    for release in ("first", "second"):
        house.write(f"{release}/memory/{release}.md")
    (house.root / "main").symlink_to(house.root / "first")
    house.agent(interval_minutes=0)
    house.remember()
    house.start()
    link = house.root / "new"
    link.symlink_to(house.root / "second")
    link.rename(house.root / "main")
    house.wait_for("main", "memory/first.md", "memory/second.md")
    wait_until(lambda: ConditionCode.WATCH_MOVED in [one.code for _, one in house.troubles.told])
    wait_until(lambda: (ConditionCode.WATCH_MOVED, "main") not in house.troubles.open)
    house.write("second/memory/later.md")
    house.wait_for("main", "memory/later.md")


def test_a_spooled_hook_is_that_of_the_agent_in_whose_folders_its_transcript_lies(house: House) -> None:
    house.agent("main", folders=("mine",), sessions=PATIENT, watch=False)
    house.agent("other", folders=("sessions",), sessions=PATIENT, watch=False)
    path = append(house.root / "sessions/a.jsonl")
    house.remember()
    house.start()
    append(path)
    write_hook(str(house.home), Hook("compaction", ("/elsewhere/b.jsonl",)))
    write_hook(str(house.home), Hook("compaction", (str(path),), meant="ghost"))
    write_hook(str(house.home), Hook("compaction", (str(path),)))
    house.wait_for("other", "sessions/a.jsonl")
    wait_until(lambda: list((house.home / "spool").iterdir()) == [])
    assert house.queue.marked("main") == []


@pytest.mark.parametrize("compares", [True, False])
def test_a_session_that_starts_has_all_documents_compared_unless_it_is_not_to(house: House, compares: bool) -> None:
    house.agent(watch=False, on_session_start=compares, interval_minutes=0)
    house.remember()
    house.start()
    house.write("main/memory/new.md")
    write_event(house.home, Event("session-start", "main"))
    wait_until(lambda: list((house.home / "spool").iterdir()) == [])
    write_event(house.home, Event("changed", "main", (str(house.write("main/memory/told.md")),)))
    house.wait_for("main", "memory/told.md", *["memory/new.md"] * compares)
    assert ("memory/new.md" in house.queue.marked("main")) is compares


@pytest.mark.parametrize("forced", [True, False])
def test_a_transcript_is_handed_over_after_so_many_messages_or_a_compaction(house: House, forced: bool) -> None:
    sync = SyncSessions(quiet_seconds=600, delta_messages=3, post_compaction_force=forced)
    house.agent(folders=("sessions",), sessions=sync, interval_minutes=0)
    short, long, compacted = (append(house.root / f"sessions/{name}.jsonl") for name in ("short", "long", "compacted"))
    house.remember()
    house.start()
    append(short, LINE * 2)
    append(compacted, compaction_line("claude-code").decode())
    append(long, LINE * 3)
    expected = ["sessions/long.jsonl", *["sessions/compacted.jsonl"] * forced]
    house.wait_for("main", *expected)
    assert set(house.queue.marked("main")) == set(expected)


def test_a_session_note_stays_without_a_name_if_the_model_is_late(house: House) -> None:
    agent = house.agent("main", folders=("sessions",), watch=False)
    paths = [house.write(f"sessions/{name}.jsonl", '{"role": "user", "content": "hi"}\n') for name in ("a", "b")]
    with raw_server([HANG], [answer(b'{"choices": [{"message": {"content": "red door"}}]}')]) as server:
        slug = {"base_url": f"{server.url}/v1", "model": "small", "timeout_seconds": 2}
        context = Context.model_validate({"session_notes": {"enabled": True, "slug": slug}})
        house.agents = [agent.model_copy(update={"context": context})]
        house.remember()
        house.start()
        write_hook(str(house.home), Hook("ended", (str(paths[0]),)))
        wait_until(lambda: server.requests)
        write_hook(str(house.home), Hook("ended", (str(paths[1]),)))
        wait_until(lambda: list((house.root / "main/memory").glob("*-red-door.md")))
    assert len(list((house.root / "main/memory").iterdir())) == 2


def test_the_end_of_a_session_stays_in_the_spool_until_the_home_keeps_it(house: House) -> None:
    agent = house.agent("main", folders=("sessions",), watch=False)
    context = Context.model_validate({"session_notes": {"enabled": True}})
    house.agents = [agent.model_copy(update={"context": context})]
    path = house.write("sessions/a.jsonl", '{"role": "user", "content": "the vault is blue"}\n')
    (house.home / "session-ends").mkdir(parents=True)
    house.remember()
    house.start()
    write_hook(str(house.home), Hook("ended", (str(path),)))
    wait_until(lambda: (ConditionCode.SESSION_ENDS_UNKEPT, "*") in house.troubles.open)
    asked = len(house.troubles.told)
    wait_until(lambda: len(house.troubles.told) > asked + 1)
    assert len(list((house.home / "spool").iterdir())) == 1
    (house.home / "session-ends").rmdir()
    [note] = wait_until(lambda: list((house.root / "main/memory").glob("*.md")))
    assert "the vault is blue" in note.read_text("utf-8")
    wait_until(lambda: not list((house.home / "spool").iterdir()))


@pytest.mark.parametrize("kind", ["compaction", "grew", "changed"])
def test_a_path_of_a_hook_outside_its_agents_folders_is_reported_and_never_opened(
    house: House, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    house.agent("main", folders=("sessions",), sessions=SyncSessions(quiet_seconds=0), watch=False)
    house.agent("other", folders=("others",), watch=False)
    secret = append(house.root / "outside/secret.jsonl")
    strange = [
        str(secret),
        str(append(house.root / "others/theirs.jsonl")),
        str(house.root / "sessions/../outside/secret.jsonl"),
        "relative.jsonl",
        "/etc/passwd/a.jsonl",
    ]
    if kind != "changed":
        (house.root / "sessions").mkdir()
        (house.root / "sessions/link.jsonl").symlink_to(secret)
        (house.root / "sessions/folder").symlink_to(secret.parent)
        strange += [str(house.root / "sessions/link.jsonl"), str(house.root / "sessions/folder/secret.jsonl")]
        strange += [str(house.root / "sessions/a.jsonl\0"), str(house.root / "main/MEMORY.md"), "/etc/passwd"]
    house.remember()
    house.start()
    opened: list[str] = []
    opening = os.open

    def recorded(name: Any, *arguments: Any, **options: Any) -> int:
        descriptor = opening(name, *arguments, **options)
        if threading.current_thread().name in ("hand-over", "inbox"):
            opened.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        return descriptor

    monkeypatch.setattr(os, "open", recorded)
    house.inbox.put(Event(kind, "main", tuple(strange)))
    good = append(house.root / "sessions/good.jsonl")
    house.inbox.put(Event(kind, "main", (str(good),)))
    house.wait_for("main", "sessions/good.jsonl")
    assert house.queue.marked("main") == ["sessions/good.jsonl"]
    assert not [path for path in opened if path.endswith(("secret.jsonl", "theirs.jsonl"))]
    wait_until(lambda: paths_refused(house) == len(strange))
    assert (ConditionCode.EVENT_PATHS_REFUSED, "other") not in house.troubles.open


@pytest.mark.parametrize("watch", [True, False])
def test_what_is_left_out_is_neither_marked_nor_a_strange_path(house: House, *, watch: bool) -> None:
    agent = house.agent(folders=("sessions",), sessions=SyncSessions(quiet_seconds=0), watch=watch)
    house.agents[-1] = agent.model_copy(update={"exclude": ("drafts/", "b.md", "out.jsonl")})
    store = {"agent:main:cron:x:run:1": {"sessionId": "run"}}
    house.write("sessions/sessions.json", json.dumps(store))
    house.write("main/memory/drafts/a.md")
    house.remember()
    house.start()
    talks = [append(house.root / "sessions" / name) for name in ("out.jsonl", "run.jsonl", "in.jsonl")]
    notes = [house.write(f"main/memory/{name}", "more") for name in ("drafts/a.md", "b.md", "c.md")]
    house.inbox.put(Event("changed", "main", (*map(str, notes), *map(str, talks))))
    house.inbox.put(Event("grew", "main", tuple(map(str, talks))))
    house.wait_for("main", "memory/c.md", "sessions/in.jsonl")
    assert set(house.queue.marked("main")) == {"memory/c.md", "sessions/in.jsonl"}
    assert house.troubles.told == []


def test_an_event_in_openclaws_database_is_handed_over_like_a_line_of_a_transcript(house: House) -> None:
    database = OpenClawDatabase(house.root / "agents" / "main")
    database.add("a", [b"{}"])
    database.add("b", [b"{}"])
    house.agent(folders=("agents/main/sessions",), interval_minutes=0, sessions=SyncSessions(quiet_seconds=0.05))
    house.remember()
    house.start()
    assert house.file_conditions() == []
    database.append("b", [b"{}"])
    house.wait_for("main", "sessions/b.jsonl")
    assert house.queue.marked("main") == ["sessions/b.jsonl"]
    database.close()
