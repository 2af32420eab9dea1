"""A new generation for changed settings: what it costs, what it needs, and what becomes of the old one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from memory.embedding.providers.stub import StubProvider
from memory.index.completion import complete_generation, hidden_notes
from memory.index.generation_writer import RESERVE_BYTES, HomeOwner, require_room
from memory.index.indexer import Indexer, IndexReport
from memory.index.vector_fill import fill_vectors
from memory.store.errors import NoRoom, NotOwner, Superseded
from schemas.documents import DocumentKey, Lane
from tests import indexing
from tests.indexing import FAST

CHECKOUT = Path(__file__).parents[3]
NOTES = {
    "MEMORY.md": "The gateway is called Basalt.\n",
    "memory/2026-11-20.md": "# Friday\n\nThe code word of the vault is HERON-4711, 我们决定周五迁移数据库。\n",
}


class World(indexing.World):
    """One provider and no cache: what the old generation does not give is paid for."""

    settings: ClassVar[dict[str, Any]] = {}
    cached = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.indexes = folder / "indexes" / "main"
        self.provider = StubProvider(limits=FAST)
        for path, text in NOTES.items():
            self.write(path, text)

    def indexer(self, *, lacking: str | None = None, **settings: Any) -> Indexer:
        return super().indexer(self.provider, error=lacking, **settings)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        yield made


def index(indexer: Indexer, *paths: str) -> IndexReport:
    keys = [DocumentKey("memory", path) for path in paths or NOTES]
    return indexer.index(keys, lane=Lane.LIVE, on_done=lambda _: None)


def finds(indexer: Indexer, words: str) -> bool:
    reader = indexer.generations.open_reader()
    assert reader is not None
    try:
        return bool(reader.search_text(words, 5))
    finally:
        reader.close()


def redaction(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"redaction": {"patterns": ["DOVE-[0-9]+"]}}


def overlap(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"chunking": {"tokens": 400, "overlap": 40}}


def segmenter(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr("memory.index.fingerprint.SEGMENTER_VERSION", "another")
    return {}


def rules(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr("memory.redaction.redactor.REDACTION_VERSION", -1)
    return {}


@pytest.mark.parametrize("change", [redaction, rules, overlap, segmenter])
def test_a_change_that_leaves_texts_as_they_are_pays_nothing_even_without_a_cache(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[World, pytest.MonkeyPatch], dict[str, Any]]
) -> None:
    index(world.indexer())
    paid = world.provider.inputs
    assert paid == len(NOTES)
    changed = world.indexer(**change(world, monkeypatch))
    old = changed.generations.current()
    index(changed)
    assert changed.generations.current() == old, "the old one answers until the new one is whole"
    assert complete_generation(changed)
    assert changed.generations.current() != old
    counts = changed.target().counts()
    assert (counts.files, counts.vectors_ready, counts.vectors_pending) == (2, 2, 0)
    assert world.provider.inputs == paid
    assert finds(changed, "迁移")


def test_a_build_goes_on_after_a_crash_where_it_was(world: World) -> None:
    index(world.indexer())
    settings = {"chunking": {"tokens": 64, "overlap": 0}}
    index(world.indexer(**settings), "MEMORY.md")
    building = world.indexer().generations.next()
    again = world.indexer(**settings)
    report = index(again)
    assert (report.unchanged, report.documents) == (1, 1)
    assert again.generations.next() == building
    assert complete_generation(again)
    assert again.generations.current() == building


def test_a_rebuild_that_was_asked_for_again_goes_on_unless_it_is_forced(world: World) -> None:
    indexer = world.indexer()
    index(indexer)
    identity = indexer.fingerprint()
    writer = indexer.generations
    writer.begin(identity.digest, identity.description)
    begun = writer.next()
    index(indexer, "MEMORY.md")
    writer.begin(identity.digest, identity.description)
    assert writer.next() == begun
    writer.begin("other", "{}")
    assert writer.next() not in {begun, None}, "one for other settings is another one"
    other = writer.next()
    writer.begin("other", "{}", force=True)
    assert writer.next() not in {other, None}


def test_new_redaction_rules_leave_no_file_behind_that_holds_the_text_unmasked(world: World) -> None:
    plain = world.indexer()
    index(plain)
    damaged = world.indexes / "20200101T000000-0-0000.sqlite.corrupt-1577836800"
    damaged.write_bytes(b"HERON-4711")
    reader = plain.generations.open_reader()
    assert reader is not None
    masked = world.indexer(redaction={"patterns": ["HERON-[0-9]+"]})
    index(masked)
    assert b"HERON-4711" in _content(world.indexes)
    assert complete_generation(masked)
    assert b"HERON-4711" not in _content(world.indexes)
    assert len(reader.search_text("4711", 5)) == 1, "who is in the middle of a query finishes"
    reader.close()
    assert not finds(masked, "4711")
    assert finds(masked, "vault")


def test_without_a_key_new_rules_are_obeyed_and_what_answers_keeps_its_vectors_until_there_is_one(world: World) -> None:
    masks = {"redaction": {"patterns": ["DOVE-[0-9]+"]}}
    index(world.indexer())
    paid = world.provider.inputs
    without = world.indexer(lacking="no key", **masks)
    index(without)
    assert complete_generation(without), "unchanged texts take their vectors along, and nobody has to be asked"
    assert without.target().counts().vectors_ready == 2
    world.write("MEMORY.md", "The gateway is called DOVE-7.\n")
    without = world.indexer(lacking="no key", chunking={"tokens": 64, "overlap": 0}, **masks)
    index(without)
    assert not complete_generation(without), "what answers has more vectors"
    assert finds(without, "gateway")
    building = without.generations.next()
    keyed = world.indexer(chunking={"tokens": 64, "overlap": 0}, **masks)
    assert keyed.fingerprint() == without.fingerprint()
    store = keyed.target()
    fill_vectors(store, keyed.supply, agent="main", seconds=10, on_ready=lambda _count, _seconds: None)
    assert complete_generation(keyed)
    assert keyed.generations.current() == building
    assert world.provider.inputs == paid + 1


@pytest.mark.parametrize("whole", [False, True])
def test_what_a_job_wrote_that_a_new_generation_does_not_have_is_not_said_to_be_done(
    world: World, *, whole: bool
) -> None:
    old = world.indexer()
    index(old)

    def keys() -> Iterator[DocumentKey]:
        changed = world.indexer(chunking={"tokens": 64, "overlap": 0})
        index(changed)
        assert not whole or complete_generation(changed)
        yield world.write("MEMORY.md", "The gateway is called Granite.\n")

    done: list[DocumentKey] = []
    with pytest.raises(Superseded):
        old.index(keys(), lane=Lane.LIVE, on_done=done.extend)
    assert not done


def test_a_generation_that_begins_to_answer_in_the_middle_of_a_job_goes_on_being_written(world: World) -> None:
    index(world.indexer())
    settings = {"chunking": {"tokens": 64, "overlap": 0}}
    one, other = world.indexer(**settings), world.indexer(**settings)
    index(one)

    def keys() -> Iterator[DocumentKey]:
        assert complete_generation(other)
        yield world.write("MEMORY.md", "The gateway is called Granite.\n")

    one.index(keys(), lane=Lane.LIVE, on_done=lambda _: None)
    assert finds(other, "granite")


def test_only_the_owner_replaces_an_index_and_other_workers_obey(world: World, tmp_path: Path) -> None:
    first, second = HomeOwner(tmp_path), HomeOwner(tmp_path)
    settings = {"chunking": {"tokens": 64, "overlap": 0}}
    index(world.indexer(owner=second))
    assert first.owns()
    other = world.indexer(owner=second, **settings)
    done: list[DocumentKey] = []
    with pytest.raises(NotOwner, match="start both again with the same ones"):
        other.index([world.write("MEMORY.md", "The gateway is called Granite.\n")], lane=Lane.LIVE, on_done=done.extend)
    assert (done, other.generations.next()) == ([], None)

    mine = world.indexer(owner=first, **settings)
    index(mine)
    assert finds(mine, "granite")
    index(other)
    with pytest.raises(NotOwner):
        complete_generation(other)
    assert complete_generation(mine)
    index(other)

    first.close()
    assert second.owns()
    index(world.indexer(owner=second))
    assert complete_generation(world.indexer(owner=second))
    second.close()


def test_without_space_no_build_is_begun_and_live_changes_reach_the_old_generation(world: World) -> None:
    index(world.indexer())
    changed = world.indexer(chunking={"tokens": 64, "overlap": 0})
    world.free = 1_000_000
    world.write("MEMORY.md", "The gateway is called Granite.\n")
    done: list[DocumentKey] = []
    with pytest.raises(NoRoom, match=r"needs about \d+ MB, and 1 MB are free in .*; free some and it is built"):
        changed.index([DocumentKey("memory", "MEMORY.md")], lane=Lane.LIVE, on_done=done.extend)
    assert not done, "it is not what was asked for"
    assert changed.generations.next() is None
    assert finds(changed, "granite")
    world.free = 10_000_000_000
    index(changed)
    assert complete_generation(changed)
    assert finds(changed, "granite")


def test_a_rebuild_asks_for_space_and_a_forced_one_does_not(world: World) -> None:
    indexer = world.indexer()
    index(indexer)
    identity = indexer.fingerprint()
    world.free = 0
    with pytest.raises(NoRoom):
        indexer.generations.begin(identity.digest, identity.description)
    assert indexer.generations.next() is None
    indexer.generations.begin(identity.digest, identity.description, force=True)
    index(indexer)
    assert complete_generation(indexer)


def test_what_nobody_needs_is_swept_before_space_is_said_to_be_short(world: World) -> None:
    index(world.indexer())
    leftover = world.indexes / "20200101T000000-0-0000.sqlite"
    leftover.write_bytes(b"x")
    changed = world.indexer(chunking={"tokens": 64, "overlap": 0})
    world_free = changed.generations._free
    assert world_free(world.indexes) is None
    changed.generations._free = lambda _: 0 if leftover.exists() else 10_000_000_000
    index(changed)
    assert not leftover.exists()
    assert changed.generations.next() is not None


def test_space_is_measured_against_the_present_generation_and_its_log(tmp_path: Path) -> None:
    current = tmp_path / "a.sqlite"
    current.write_bytes(b"x" * 1_000_000)
    (tmp_path / "a.sqlite-wal").write_bytes(b"x" * 1_000_000)
    require_room(current, free=lambda _: 3_000_000 + RESERVE_BYTES)
    require_room(current, free=lambda _: None)
    with pytest.raises(NoRoom):
        require_room(current, free=lambda _: 2_999_999 + RESERVE_BYTES)


def test_the_first_index_of_an_agent_asks_for_no_space(world: World) -> None:
    world.free = 0
    index(world.indexer())
    assert world.indexer().generations.current() is not None


AGREE = """
import json, sys
from memory.embedding.selection import choose_provider
from memory.index.fingerprint import fingerprint
from recalld.settings.load import load
settings = load(config=sys.argv[1], home=sys.argv[2]).settings
agent = settings.agent("main")
provider = choose_provider(agent, settings.credentials).provider
print(fingerprint(agent, provider.identity).digest)
"""


def test_processes_with_the_same_settings_agree_on_the_identity(tmp_path: Path) -> None:
    config = tmp_path / "recalld.toml"
    config.write_text(
        f'provider = "openai"\n[redaction]\npatterns = ["b-\\\\d+", "a-\\\\d+"]\n'
        f'[[agents]]\nid = "main"\nworkspace = {json.dumps(str(tmp_path))}\n',
        "utf-8",
    )
    said = set()
    for number, (seed, locale, folder) in enumerate(
        [("0", "C", CHECKOUT), ("7", "C.UTF-8", tmp_path), ("random", "", "/")]
    ):
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(CHECKOUT),
            "PYTHONHASHSEED": seed,
            "LC_ALL": locale,
            "HOME": str(tmp_path),
            # A different key is no different identity.
            "OPENAI_API_KEY": f"key-{number}",
        }
        arguments = [sys.executable, "-c", AGREE, str(config), str(tmp_path / f"home-{number}")]
        ran = subprocess.run(arguments, env=environment, cwd=folder, capture_output=True, text=True, check=True)
        said.add(ran.stdout.strip())
    assert len(said) == 1
    assert len(said.pop()) == 32


def _content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


def test_changed_settings_while_the_workspace_is_not_mounted_leave_the_old_index_answering(world: World) -> None:
    index(world.indexer())
    disk = world.workspace.rename(world.workspace.with_name("disk"))
    for mounted in (False, True):  # the folder is gone, and then it is an empty mount point
        if mounted:
            world.workspace.mkdir()
        changed = world.indexer(chunking={"tokens": 200, "overlap": 20})
        changed.target()
        assert not complete_generation(changed)
        assert sorted(key.path for key in hidden_notes(changed)) == sorted(NOTES)
        assert finds(changed, "Basalt")
    world.workspace.rmdir()
    disk.rename(world.workspace)
    assert hidden_notes(changed) == []
    index(changed)
    assert complete_generation(changed)
    assert finds(changed, "Basalt")


def test_deletions_in_a_workspace_that_is_empty_now_are_done_when_anything_lies_in_it_again(world: World) -> None:
    index(world.indexer())
    world.workspace.rename(world.workspace.with_name("disk"))
    world.workspace.mkdir()
    assert index(world.indexer()).deleted == 0
    assert finds(world.indexer(), "Basalt")
    (world.workspace / "anything.txt").touch()
    assert index(world.indexer()).deleted == len(NOTES)
    assert not finds(world.indexer(), "Basalt")
