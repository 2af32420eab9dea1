from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from memory.documents.agent_files import (
    AgentFiles,
    DocumentGone,
    DocumentRefused,
    DocumentUnreadable,
    WatchRoot,
)
from memory.documents.comparison import difference, forgets
from memory.documents.imports import ImportedFolder, imports_path, remember_import
from memory.documents.roots import is_transcript_name
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey
from schemas.errors import Transient
from schemas.settings import AgentSettings, Settings, Sync, SyncSessions
from tests.recording import entered_folders
from tests.storing import TemporaryStore, mark, piece, said, touch

LINE = b'{"role":"user","content":"hello"}\n'
TIME = "2026-02-03T09-00-00.000Z"


def key(path: str | Path) -> DocumentKey:
    return DocumentKey("sessions", str(path))


class Desk:
    """An agent with session folders, beside a folder that is nobody's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.workspace = root / "ws"
        self.sessions = root / ".agent/sessions"
        for folder in (self.workspace, self.sessions, root / "outside"):
            folder.mkdir(parents=True)

    def agent(self, *folders: Path | str, forget: bool = False) -> AgentSettings:
        return AgentSettings(
            id="main",
            workspace=self.workspace,
            sessions=tuple(map(str, folders or (self.sessions,))),
            sync=Sync(sessions=SyncSessions(forget_deleted=forget)),
        )

    def files(self, *folders: Path | str, forget: bool = False) -> AgentFiles:
        agent = self.agent(*folders, forget=forget)
        return AgentFiles.of(Settings(home=self.root / "home", agents=(agent,)), agent)

    def write(self, path: str | Path, content: bytes = LINE, *, age_seconds: float = 60) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        then = time.time_ns() - int(age_seconds * 1e9)
        os.utime(target, ns=(then, then))
        return target

    def imported(self, folder: Path, name: str | None = None, files: tuple[str, ...] | None = None) -> None:
        remember_import(imports_path(self.root / "home", "main"), ImportedFolder(str(folder), name, files))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def found(files: AgentFiles) -> list[str]:
    return sorted(document.path for document in files.scan().documents)


def content(files: AgentFiles, path: str | Path) -> list[bytes | None]:
    with files.opened(key(path)) as opened:
        return [line.data for line in opened.lines()]


# Names -------------------------------------------------------------------------------------------------


def test_sessions_and_their_archives_are_transcripts_and_copies_and_other_files_are_none() -> None:
    sessions = ["a.jsonl", "a-topic-7.jsonl", "rollout-2026-02-03T09-00-00-uuid.jsonl", "会话.jsonl", "a.jsonl.zst"]
    archives = [f"a.jsonl.reset.{TIME}", f"a.jsonl.deleted.{TIME}", f"a.jsonl.deleted.{TIME}.zst"]
    assert all(map(is_transcript_name, [*sessions, *archives, "a.jsonl.reset.1770109200000"]))
    hidden = [".a.jsonl", ".jsonl", "caf\udce9.jsonl"]
    copies = ["a.jsonl.bak", f"a.jsonl.bak.{TIME}", "a.jsonl.bak-7-1770109200", f"a.jsonl.reset.{TIME}.bak"]
    traces = ["a.checkpoint.1b2c.jsonl", "a.trajectory.jsonl.zst", f"a.trajectory.jsonl.deleted.{TIME}"]
    drafts = ["a.jsonl.tmp", "a.jsonl~", "a.jsonl.lock", "a.jsonl.reset.", "a.jsonl.zst.zst", "a.jsonl.gz"]
    others = ["a.trajectory.jsonl", "a.json", "sessions.json", "a.md"]
    assert not any(map(is_transcript_name, [*hidden, *copies, *traces, *drafts, *others]))


# Scanning ----------------------------------------------------------------------------------------------


def test_an_agent_has_the_transcripts_below_its_session_folders_and_its_notes(desk: Desk) -> None:
    desk.write("ws/MEMORY.md")
    for name in ("a.jsonl", "topics/deep/b.jsonl", f"c.jsonl.reset.{TIME}", "sessions.json", "a.jsonl.bak"):
        desk.write(desk.sessions / name)
    files = desk.files()
    expected = ["sessions/a.jsonl", f"sessions/c.jsonl.reset.{TIME}", "sessions/topics/deep/b.jsonl"]
    assert found(files) == ["MEMORY.md", *expected]
    assert files.scan().problems == ()
    for path in expected:
        assert files.key_of(files.path_of(key(path))) == key(path)
        assert files.stat(key(path)) == files.scan().documents[key(path)]
        assert files.resolve(path) == key(path)
        assert files.resolve(str(files.path_of(key(path)))) == key(path)
        assert content(files, path) == [LINE.rstrip()]


def test_an_agent_whose_sources_leave_transcripts_out_has_none(desk: Desk) -> None:
    path = desk.write(desk.sessions / "a.jsonl")
    files = AgentFiles(desk.agent().model_copy(update={"sources": ("memory",)}))
    assert found(files) == []
    assert files.key_of(path) is None
    assert files.watch_roots() == [WatchRoot(desk.workspace, recursive=False)]
    with pytest.raises(DocumentRefused):
        files.resolve("sessions/a.jsonl")


def test_a_session_folder_may_be_hidden_and_reached_through_links(desk: Desk) -> None:
    path = desk.write(desk.sessions / "a.jsonl")
    (desk.root / "alias").symlink_to(desk.sessions)
    files = desk.files(desk.root / "alias")
    assert found(files) == ["sessions/a.jsonl"]
    assert content(files, "sessions/a.jsonl") == [LINE.rstrip()]
    assert files.key_of(path) == files.key_of(desk.root / "alias/a.jsonl") == key("sessions/a.jsonl")
    assert desk.root / "alias" in entered_folders(files)


def test_a_session_folder_inside_another_one_names_nothing_twice(desk: Desk) -> None:
    path = desk.write(desk.sessions / "project/a.jsonl")
    (desk.root / "alias").symlink_to(desk.sessions / "project")
    for folders in (
        (desk.sessions, desk.sessions / "project"),
        (desk.sessions / "project", desk.sessions),
        (desk.root / "alias", desk.sessions),
        (desk.sessions, desk.sessions),
    ):
        files = desk.files(*folders)
        assert found(files) == ["sessions/project/a.jsonl"]
        assert files.scan().problems == ()
        assert files.key_of(path) == key("sessions/project/a.jsonl")
        assert WatchRoot(desk.sessions, recursive=True) in files.watch_roots()
        assert len(files.watch_roots()) == 2
    assert desk.files(desk.root / "alias", desk.sessions).key_of(desk.root / "alias/a.jsonl") == key(
        "sessions/project/a.jsonl"
    )


def test_a_session_folder_that_another_one_does_not_look_into_stands_for_itself(desk: Desk) -> None:
    desk.write(desk.sessions / ".archive/a.jsonl")
    assert found(desk.files(desk.sessions, desk.sessions / ".archive")) == ["sessions/a.jsonl"]


def test_of_two_transcripts_of_one_name_the_first_folder_wins_and_the_other_is_said(desk: Desk) -> None:
    first = desk.write("one/a.jsonl", b"first\n")
    second = desk.write("two/a.jsonl", b"second, longer\n")
    desk.write("two/b.jsonl")
    files = desk.files(first.parent, second.parent)
    scan = files.scan()
    assert found(files) == ["sessions/a.jsonl", "sessions/b.jsonl"]
    assert scan.documents[key("sessions/a.jsonl")].size == 6
    assert content(files, "sessions/a.jsonl") == [b"first"]
    assert scan.complete
    [twice] = scan.problems
    assert (twice.code, twice.params["example"]) == (ConditionCode.TRANSCRIPTS_NAMED_TWICE, "a.jsonl")
    assert twice.subject == str(second.parent)
    first.unlink()
    assert content(files, "sessions/a.jsonl") == [b"second, longer"]
    assert files.scan().problems == ()


# Compressed ones, archives -----------------------------------------------------------------------------


def test_a_compressed_transcript_is_the_same_document_and_the_plain_file_wins(desk: Desk) -> None:
    path = desk.write(desk.sessions / "a.jsonl.zst", b"compressed")
    files = desk.files()
    assert found(files) == ["sessions/a.jsonl"]
    assert files.key_of(path) == files.resolve("sessions/a.jsonl.zst") == key("sessions/a.jsonl")
    assert files.path_of(key("sessions/a.jsonl")) == path
    assert files.scan().documents[key("sessions/a.jsonl")].size == len(b"compressed")
    with files.opened(key("sessions/a.jsonl")) as opened:
        assert (opened.compressed, opened.stat.size) == (True, len(b"compressed"))
    plain = desk.write(desk.sessions / "a.jsonl")
    assert files.scan().documents == {key("sessions/a.jsonl"): files.stat(key("sessions/a.jsonl"))}
    assert files.path_of(key("sessions/a.jsonl")) == plain
    with files.opened(key("sessions/a.jsonl")) as opened:
        assert (opened.compressed, opened.stat.size) == (False, len(LINE))


def test_an_archive_may_be_in_the_index_under_its_sessions_name(desk: Desk) -> None:
    desk.write(desk.sessions / f"deep/a.jsonl.reset.{TIME}.zst")
    real = desk.sessions
    files = desk.files()
    archive = key(f"sessions/deep/a.jsonl.reset.{TIME}")
    assert found(files) == [archive.path]
    assert files.earlier_names(archive) == [
        key("sessions/deep/a.jsonl"),
        key(real / "deep/a.jsonl"),
        key(real / f"deep/a.jsonl.reset.{TIME}"),
    ]
    assert files.earlier_names(key("sessions/deep/a.jsonl")) == [key(real / "deep/a.jsonl")]
    assert files.earlier_names(DocumentKey("memory", "MEMORY.md")) == []


def test_a_transcript_of_which_the_index_has_a_whole_archive_is_forgotten_under_its_old_name(desk: Desk) -> None:
    desk.write(desk.sessions / f"a.jsonl.deleted.{TIME}.zst")
    desk.write(desk.sessions / "ab.jsonl")
    files, store = desk.files(), TemporaryStore()
    absent = [key(f"sessions/{name}.jsonl") for name in ("a", "ab.jsonl.b", "b")]
    archive = key(f"sessions/a.jsonl.deleted.{TIME}")
    stat = files.stat(archive)
    assert stat is not None
    store.write([piece(*said("one", "two"), continues=None, to=mark(2), of=absent[0])])

    def gone() -> list[DocumentKey]:
        found = [one for one in absent if forgets(files, one, store)]
        assert difference(files, store).gone == found
        return found

    assert [forgets(files, one) for one in absent] == [True, False, False], "as far as names tell"
    assert gone() == []
    store.write([replace(piece(*said("one"), continues=None, to=mark(1), of=archive), stat=stat)])
    assert gone() == []
    going_on = piece(*said("two and more", "three", first=1), continues=mark(1), to=mark(3), of=archive)
    store.write([replace(going_on, stat=stat)])
    assert gone() == absent[:1]
    store.add_dead_letter(archive, reason="it ends too early", error_class="TranscriptDamaged")
    assert gone() == []
    store.drop_dead_letter(archive)
    touch(store, archive, replace(stat, size=stat.size - 1))
    assert gone() == [], "what is on the disk is not what was read"


# Opening -----------------------------------------------------------------------------------------------


def test_a_transcript_is_read_from_an_offset_up_to_the_size_it_had_when_it_was_opened(desk: Desk) -> None:
    path = desk.write(desk.sessions / "a.jsonl", b"one\ntwo\n")
    with desk.files().opened(key("sessions/a.jsonl")) as opened:
        with path.open("ab") as out:
            out.write(b"three\n")
        assert [line.data for line in opened.lines(4)] == [b"two"]
    assert (opened.stat.size, opened.compressed, opened.format) == (8, False, None)


def test_a_transcript_that_is_cut_while_it_is_read_is_read_again_later(desk: Desk) -> None:
    path = desk.write(desk.sessions / "a.jsonl", b"one\ntwo\n")
    with desk.files().opened(key("sessions/a.jsonl")) as opened:
        os.truncate(path, 4)
        with pytest.raises(Transient, match="written anew"):
            list(opened.lines())


def test_a_transcript_that_is_gone_or_unreadable_or_nobodys_is_said_so(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = desk.files()
    for path in ("sessions/gone.jsonl", "sessions/notes.md", "elsewhere/a.jsonl", str(desk.root / "outside/a.jsonl")):
        with pytest.raises(DocumentGone):
            content(files, path)
    desk.write(desk.sessions / "a.jsonl")

    def broken(*arguments: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(DocumentUnreadable, match="Input/output error"):
        content(files, "sessions/a.jsonl")


def test_a_transcript_that_is_compressed_between_two_looks_is_tried_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = desk.write(desk.sessions / "a.jsonl")
    path.rename(desk.sessions / "aside")
    files, opening = desk.files(), os.open

    def late(name: str, *arguments: int, **options: int) -> int:
        try:
            return opening(name, *arguments, **options)
        finally:
            if str(name).endswith(".zst"):
                (desk.sessions / "aside").rename(path)

    monkeypatch.setattr(os, "open", late)
    with pytest.raises(Transient, match="is being replaced"):
        content(files, "sessions/a.jsonl")


@pytest.mark.parametrize(
    "path",
    [
        "sessions/../outside/secret.jsonl",
        "sessions/./a.jsonl",
        "sessions//a.jsonl",
        "sessions/a.jsonl\0",
        "sessions/",
        "sessions",
        "sessions/.hidden/a.jsonl",
        "sessions/a.jsonl.bak",
        "elsewhere/a.jsonl",
    ],
)
def test_a_path_from_outside_that_is_no_transcript_by_name_is_refused(desk: Desk, path: str) -> None:
    with pytest.raises(DocumentRefused):
        desk.files().resolve(path)


def test_another_agents_transcript_is_no_document(desk: Desk) -> None:
    mine = desk.write("agents/main/sessions/a.jsonl")
    other = desk.write("agents/other/sessions/a.jsonl")
    files = desk.files(mine.parent)
    assert files.key_of(mine) == key("sessions/a.jsonl")
    assert files.key_of(other) is None
    assert files.key_of(f"{mine.parent}/../../other/sessions/a.jsonl") is None


# Imports -----------------------------------------------------------------------------------------------


def test_an_imported_transcript_has_its_absolute_path_and_is_read_but_not_scanned_or_watched(desk: Desk) -> None:
    path = desk.write("old/deep/a.jsonl")
    desk.imported(desk.root / "old", "codex")
    files = desk.files()
    assert found(files) == []
    assert [document.path for document in files.scan(imported=True).documents] == [str(path)]
    assert files.key_of(path) == files.resolve(str(path)) == key(path)
    assert files.stat(key(path)) is not None
    assert content(files, path) == [LINE.rstrip()]
    with files.opened(key(path)) as opened:
        assert opened.format == "codex"
    assert not any("old" in str(root.path) for root in files.watch_roots())
    assert desk.root / "old" not in entered_folders(files)


def test_only_the_files_that_were_imported_are_documents(desk: Desk) -> None:
    one, two = desk.write("old/one.jsonl"), desk.write("old/two.jsonl.zst")
    three = desk.write("old/three.jsonl")
    desk.imported(desk.root / "old", files=("one.jsonl", "two.jsonl.zst"))
    files = desk.files()
    assert files.key_of(one) == key(one)
    assert files.key_of(two) == key(str(two).removesuffix(".zst"))
    assert files.key_of(three) is None
    assert len(files.scan(imported=True).documents) == 2
    desk.imported(desk.root / "old", files=("three.jsonl",))
    assert files.key_of(three) == key(three)
    assert files.key_of(one) == key(one)


def test_imports_that_overlap_are_no_problem_and_the_latest_names_the_format(desk: Desk) -> None:
    path = desk.write("old/deep/a.jsonl")
    desk.imported(desk.root / "old", "codex")
    desk.imported(desk.root / "old/deep", "plain")
    desk.imported(desk.root / "nowhere")
    files = desk.files()
    scan = files.scan(imported=True)
    assert (list(scan.documents), scan.problems) == ([key(path)], ())
    with files.opened(key(path)) as opened:
        assert opened.format == "plain"


def test_an_imported_transcript_below_a_configured_folder_has_the_configured_name(desk: Desk) -> None:
    path = desk.write(desk.sessions / "a.jsonl")
    desk.write("b.jsonl")
    desk.imported(desk.root)
    files = desk.files()
    assert files.key_of(path) == key("sessions/a.jsonl")
    assert files.stat(key(path)) is None
    assert files.earlier_names(key("sessions/a.jsonl")) == [key(path)]
    assert sorted(document.path for document in files.scan(imported=True).documents) == [
        str(desk.root / "b.jsonl"),
        "sessions/a.jsonl",
    ]


def test_imports_of_another_agent_or_a_damaged_list_name_nothing(desk: Desk) -> None:
    path = desk.write("old/a.jsonl")
    remember_import(imports_path(desk.root / "home", "other"), ImportedFolder(str(path.parent)))
    assert desk.files().key_of(path) is None
    imports_path(desk.root / "home", "main").write_text("{")
    files = desk.files()
    assert files.key_of(path) is None
    assert [one.code for one in files.scan().problems] == [ConditionCode.IMPORTS_UNREADABLE]


# Watching ----------------------------------------------------------------------------------------------


def test_session_folders_are_watched_with_all_below_or_through_what_is_above_them(desk: Desk) -> None:
    files = desk.files(desk.sessions, desk.root / "later/sessions")
    assert sorted(files.watch_roots(), key=lambda root: root.path) == [
        WatchRoot(desk.root, recursive=False),
        WatchRoot(desk.sessions, recursive=True),
        WatchRoot(desk.workspace, recursive=False),
    ]


# Priority ----------------------------------------------------------------------------------------------


def test_an_import_says_how_files_below_a_configured_folder_are_read_and_the_latest_one_counts(desk: Desk) -> None:
    desk.write(".agent/sessions/a/one.jsonl")
    desk.write(".agent/sessions/b/two.jsonl")
    files = desk.files()
    one, two = key("sessions/a/one.jsonl"), key("sessions/b/two.jsonl")
    assert files.named_format(one) is None
    desk.imported(desk.sessions / "a", "codex")
    assert (files.named_format(one), files.named_format(two)) == ("codex", None)
    with files.opened(one) as opened:
        assert opened.format == "codex"
    desk.imported(desk.sessions, None)
    assert files.named_format(one) is None
    with files.opened(one) as opened:
        assert opened.format is None


def test_an_import_that_is_about_to_be_counts_without_being_written(desk: Desk) -> None:
    outside = desk.write("outside/old.jsonl")
    agent = desk.agent()
    settings = Settings(home=desk.root / "home", agents=(agent,))
    files = AgentFiles.of(settings, agent, drafted=[ImportedFolder(str(outside.parent), "plain", None)])
    assert files.key_of(outside) == key(outside)
    assert files.named_format(key(outside)) == "plain"
    assert AgentFiles.of(settings, agent).key_of(outside) is None
    assert not settings.home.exists()
