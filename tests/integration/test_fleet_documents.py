"""Documents that machines send to a fleet, as they arrive in PostgreSQL and as workers read them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles, DocumentGone
from memory.store.postgres.arrivals import ArrivingDocuments, EventReused, Extent, Misplaced, Part, running_digest
from memory.store.postgres.connection import Database
from memory.store.postgres.writer import PostgresStore, create_generation
from memory.store.writer import DocumentWrite
from memory.transcripts.lines import packed
from schemas.agents import Scope
from schemas.documents import DocumentKey, FileStat
from schemas.settings import AgentSettings

ANNA = Scope("acme", "anna")
NOTE = DocumentKey("memory", "memory/2026-11-20.md")
TALK = DocumentKey("sessions", "sessions/laptop/a.jsonl")


@pytest.fixture
def arriving(database: Database) -> ArrivingDocuments:
    return ArrivingDocuments(database, ANNA)


@pytest.fixture
def files(tmp_path: Path, arriving: ArrivingDocuments) -> Callable[..., AgentFiles]:
    """Make the files of the agent as workers see them."""

    def files(**settings: object) -> AgentFiles:
        agent = AgentSettings.model_validate({"id": "acme/anna", "workspace": tmp_path / "none", **settings})
        return AgentFiles(agent, arrived=arriving)

    return files


def part(content: bytes, *, after: Extent = Extent(), last: bool = True) -> Part:  # noqa: B008 - frozen
    digest = running_digest(after.digest, content)
    return Part(after, len(content), digest, packed(content), len(content), is_last=last)


def text(files: AgentFiles, key: DocumentKey = NOTE) -> str:
    return files.read(key).text


def lines(files: AgentFiles, position: int = 0) -> list[bytes | None]:
    with files.opened(TALK) as opened:
        return [line.data for line in opened.lines(position)]


def test_a_note_is_read_as_it_was_sent_and_replaced_whole(
    arriving: ArrivingDocuments, files: Callable[..., AgentFiles]
) -> None:
    arriving.add("laptop", NOTE, part("# Decisions\n早上好\n".encode()))
    assert text(files()) == "# Decisions\n早上好\n"
    source = files().read(NOTE)
    assert source.content_hash == hashlib.sha256("# Decisions\n早上好\n".encode()).hexdigest()
    assert files().scan().documents == {NOTE: source.stat} == {NOTE: files().stat(NOTE)}

    first = arriving.add("laptop", NOTE, part(b"new, ", last=False))
    assert text(files()) == "# Decisions\n早上好\n", "half a version is none"
    assert files().stat(NOTE) == source.stat
    arriving.add("laptop", NOTE, part(b"whole\n", after=first))
    assert text(files()) == "new, whole\n"
    assert not source.stat.agrees_with(files().read(NOTE).stat)


def test_index_and_documents_of_one_snapshot_are_of_one_moment(
    arriving: ArrivingDocuments, database: Database, files: Callable[..., AgentFiles]
) -> None:
    store = PostgresStore(database, ANNA, create_generation(database, ANNA, fingerprint="f", description="{}"))
    arriving.add("laptop", NOTE, part(b"before\n"))
    with store.snapshot():
        assert store.revision(NOTE) == 0
        arriving.add("laptop", NOTE, part(b"after\n"))
        store.write([DocumentWrite(NOTE, 0, FileStat(1, 1, 1), "hash")])
        assert (store.revision(NOTE), text(files())) == (0, "before\n")
    assert (store.revision(NOTE), text(files())) == (1, "after\n")


def test_documents_that_are_looked_up_at_once_are_those_that_are_read_one_by_one(
    arriving: ArrivingDocuments, database: Database, files: Callable[..., AgentFiles]
) -> None:
    store = PostgresStore(database, ANNA, create_generation(database, ANNA, fingerprint="f", description="{}"))
    contents = {"small": b"one\n", "empty": b"", "large": b"0123456789\n" * 2_000, "twice": b"old\n", "half": b"done\n"}
    notes = {name: DocumentKey("memory", f"memory/{name}.md") for name in (*contents, "absent", "indexed")}
    for name, content in contents.items():
        arriving.add("laptop", notes[name], part(content))
    first = arriving.add("laptop", notes["small"], part(b"two ", last=False))
    arriving.add("laptop", notes["small"], part(b"parts\n", after=first))
    arriving.add("desktop", notes["twice"], part(b"new\n"))
    arriving.add("laptop", notes["half"], part(b"not yet ", last=False))
    arriving.add("laptop", TALK, part(b'{"a": 1}\n'))
    store.write([DocumentWrite(notes["indexed"], 0, FileStat(1, 1, 1), "hash")])

    def facts() -> list[object]:
        stats = {name: files().stat(key) for name, key in notes.items()}
        texts = [text(files(), notes[name]) for name in contents]
        return [stats, texts, lines(files()), [(store.revision(key), store.file(key)) for key in notes.values()]]

    expected = facts()
    with database.shared_reads(ANNA):
        files().look_up([*notes.values(), TALK])
        store.look_up([*notes.values(), TALK])
        assert facts() == expected


def test_a_part_that_came_before_changes_nothing(arriving: ArrivingDocuments, files: Callable[..., AgentFiles]) -> None:
    one = part(b'{"a": 1}\n')
    first = arriving.add("laptop", TALK, one)
    two = part(b'{"b": 2}\n', after=first)
    second = arriving.add("laptop", TALK, two)
    before = files().stat(TALK)
    assert arriving.add("laptop", TALK, two) == second
    assert files().stat(TALK) == before
    third = arriving.add("laptop", TALK, part(b"{}\n", after=second))
    assert arriving.add("laptop", TALK, two) == second
    assert lines(files()) == [b'{"a": 1}', b'{"b": 2}', b"{}"]
    assert arriving.extents("laptop", [TALK, NOTE]) == {TALK: third}


@pytest.mark.parametrize("after", [Extent(3, "ab"), Extent(9, ""), Extent(9, "00" * 16), Extent(10**12, "ab")])
def test_a_part_that_does_not_follow_is_refused_with_what_is_there(
    arriving: ArrivingDocuments, files: Callable[..., AgentFiles], after: Extent
) -> None:
    present = arriving.add("laptop", TALK, part(b'{"a": 1}\n'))
    with pytest.raises(Misplaced) as refused:
        arriving.add("laptop", TALK, part(b"{}\n", after=after))
    assert refused.value.present == present
    assert lines(files()) == [b'{"a": 1}']


def test_content_that_became_the_beginning_of_what_it_was_is_a_new_version(
    arriving: ArrivingDocuments, files: Callable[..., AgentFiles]
) -> None:
    first = arriving.add("laptop", TALK, part(b"{}\n"))
    arriving.add("laptop", TALK, part(b"[]\n", after=first))
    arriving.add("laptop", TALK, part(b"{}\n"))
    assert lines(files()) == [b"{}"]
    # Parts of the version before are no parts of the new one.
    again = arriving.add("laptop", TALK, part(b"{}\n", last=False))
    arriving.add("laptop", TALK, part(b"[]\n", after=again, last=False))
    assert lines(files()) == [b"{}"]


def test_an_event_is_good_for_one_content(arriving: ArrivingDocuments, files: Callable[..., AgentFiles]) -> None:
    arriving.add("laptop", NOTE, part(b"one\n"), event="e1")
    arriving.add("laptop", NOTE, part(b"one\n"), event="e1")
    with pytest.raises(EventReused):
        arriving.add("laptop", NOTE, part(b"two\n"), event="e1")
    assert text(files()) == "one\n"


def test_of_a_note_on_two_machines_the_latest_version_counts(
    arriving: ArrivingDocuments, files: Callable[..., AgentFiles]
) -> None:
    arriving.add("laptop", NOTE, part(b"of the laptop\n"))
    arriving.add("server", NOTE, part(b"of the server\n"))
    assert text(files()) == "of the server\n"
    arriving.add("laptop", NOTE, part(b"of the laptop, later\n"))
    assert text(files()) == "of the laptop, later\n"
    arriving.remove("laptop", [NOTE])
    assert text(files()) == "of the server\n"
    arriving.remove("server", [NOTE])
    with pytest.raises(DocumentGone):
        files().read(NOTE)
    assert files().scan().documents == {}


def test_documents_that_the_settings_leave_out_are_counted_and_not_read(
    arriving: ArrivingDocuments, files: Callable[..., AgentFiles]
) -> None:
    arriving.add("laptop", NOTE, part(b"note\n"))
    arriving.add("laptop", TALK, part(b"{}\n"))
    fewer = files(exclude=["memory/2026-*"])
    assert list(fewer.scan().documents) == [TALK]
    assert fewer.scan().left_out == {"excluded": 1}
    with pytest.raises(DocumentGone):
        fewer.read(NOTE)


def test_a_name_from_outside_is_resolved_as_on_a_disk(
    arriving: ArrivingDocuments, files: Callable[..., AgentFiles]
) -> None:
    assert files().resolve("memory/2026-11-20.md") == NOTE
    assert files().resolve("sessions/laptop/a.jsonl") == TALK


def test_another_agent_and_another_tenant_have_nothing_of_it(arriving: ArrivingDocuments, database: Database) -> None:
    arriving.add("laptop", NOTE, part(b"of anna\n"))
    for scope in (Scope("acme", "bert"), Scope("other", "anna")):
        stranger = ArrivingDocuments(database, scope)
        assert (stranger.all(), stranger.held(NOTE), stranger.extents("laptop", [NOTE])) == ({}, None, {})
        stranger.remove("laptop", [NOTE])
    held = arriving.held(NOTE)
    assert held is not None
    assert list(ArrivingDocuments(database, Scope("other", "anna")).content(held)) == []


@pytest.mark.parametrize("seed", range(3))
def test_lines_are_read_from_any_place_however_the_content_was_cut(
    arriving: ArrivingDocuments, files: Callable[..., AgentFiles], seed: int
) -> None:
    source = random.Random(seed)
    written = [b"x" * source.randrange(200) + b"\n" for _ in range(300)]
    content, extent, place = b"".join(written), Extent(), 0
    while place < len(content):
        end = min(len(content), place + source.randrange(1, 3_000))
        extent = arriving.add("laptop", TALK, part(content[place:end], after=extent))
        place = end
    first = source.randrange(300)
    position = len(b"".join(written[:first]))
    assert lines(files(), position) == [line.rstrip(b"\n") for line in written[first:]]
    assert extent == Extent(len(content), extent.digest)
