"""Deleted text leaves the disk: indexes, their logs, replaced and damaged generations, and another program's index."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from memory.index.fingerprint import Fingerprint
from memory.store.sqlite.maintenance import ERASE_AFTER_SECONDS
from schemas.settings import Settings
from tests.daemon import files_with
from tests.quiet_health import QuietHealth
from tests.serving import running, search
from tests.waiting import wait_until
from tests.working import Workers, key
from tests.written_index import write_index, writer_of
from workers.maintenance import Maintenance, keep_house
from workers.runtime import Runtime

#: Words without a sister in the rest of the notes, so that FTS5 cuts at most their first letter off.
WORDS = ("Jqulation", "Xvorping", "Kzindlers")

#: Beginnings that a word shares with its stem.
STEMS = (b"qul", b"vorp", b"zindl")


def traces(home: Path) -> set[str]:
    """Return the files with a word of `WORDS` or its stem; an index and its log are one, as checkpoints move pages."""
    holding = files_with(home, lambda content: any(stem in content.lower() for stem in STEMS))
    return {path.name.removesuffix("-wal") for path in holding}


def deleted_on_disk(settings: Settings) -> tuple[int, bool]:
    """Return the count of status, and True if it has a time."""
    with running(settings, QuietHealth()) as client:
        index = client.get("/v1/status").json()["agents"][0]["index"]
    return index.get("deletedOnDisk", 0), "deletedSince" in index


@pytest.mark.usefixtures("broker_server")
def test_words_of_a_deleted_note_and_line_leave_the_home_and_are_counted_until_then(settings: Settings) -> None:
    plain = "\n\n".join(f"Paragraph {number} has many ordinary words about herons." for number in range(40))
    with Workers(settings) as workers:
        workers.index("memory/other.md", plain)
        workers.index("memory/secret.md", f"The {WORDS[0]} of the {WORDS[1]}.\n\n{plain}")
        workers.index("memory/kept.md", f"A line about {WORDS[2]}.\n\nAnother line.\n")
        with workers.reading("main") as reader:
            assert reader is not None
            reader.search_text("heron", 5)
        assert traces(settings.home)
        (settings.agents[0].workspace / "memory" / "secret.md").unlink()
        workers.mark("memory/secret.md")
        workers.note("memory/kept.md", "Another line.\n")
        wait_until(lambda: workers.settled() and not any(map(workers.finds, WORDS)))
        deleted, now = deleted_on_disk(settings), time.time()
        assert deleted[0] > 1
        assert deleted[1]
        left = traces(settings.home)
        assert any(".sqlite" in name for name in left), "segments of the keyword index keep words"

        runtime = Runtime(settings, workers.queue, workers.health)
        with runtime.indexer("main") as indexer:
            revision = indexer.target().revision(key("memory/kept.md"))
        early, late = now + ERASE_AFTER_SECONDS / 2, now + ERASE_AFTER_SECONDS + 1
        for at in (early, late):
            assert traces(settings.home) == left, "a merge for each deletion would cost too much"
            Maintenance(runtime, stopping=lambda: False).of_agent("main", now=at)
        assert traces(settings.home) == set()
        with runtime.indexer("main") as indexer:
            assert indexer.target().revision(key("memory/kept.md")) == revision
            assert indexer.target().check() == []
        runtime.close()
    assert deleted_on_disk(settings) == (0, False)


@pytest.mark.usefixtures("broker_server")
def test_damaged_indexes_and_those_of_a_former_backend_leave_the_home(settings: Settings) -> None:
    with Workers(settings) as workers:
        workers.index("memory/kept.md", "A line.\n")
        damaged = settings.indexes_path / "main" / f"g.sqlite.corrupt-{int(time.time()) - 3_600}"
        qmd = settings.home / "qmd" / "main"
        files = [damaged, qmd / "sessions" / "a.jsonl.md", qmd / "cache" / "qmd" / "index.sqlite-wal"]
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(WORDS[0])
        runtime = Runtime(settings, workers.queue, workers.health)
        workers.stop()
        keep_house(runtime, "main")
        runtime.close()
    assert traces(settings.home) == set()


def test_a_service_lets_go_of_a_replaced_index_though_no_search_comes(
    settings: Settings, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory.service.app.LOOK_AROUND_SECONDS", 3_600)
    (workspace / "memory" / "a.md").write_text(f"A line about {WORDS[0]}.\n", "utf-8")
    store = write_index(settings)
    identity, digest = store.meta("identity"), store.meta("fingerprint")
    assert identity
    assert digest
    store.close()

    def deleted_but_open() -> list[str]:
        names = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return [name for name in names if name.startswith(str(settings.home)) and name.endswith("(deleted)")]

    with running(settings) as client:
        search(client, "line")
        writer = writer_of(settings)
        writer.begin(Fingerprint(digest, identity), force=True)
        assert writer.complete(digest)
        writer.close()
        assert traces(settings.home) == set(), "the replaced file is unlinked at once"
        assert deleted_but_open()
        # Long before the service looks at all agents again.
        wait_until(lambda: not deleted_but_open())
