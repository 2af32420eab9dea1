"""Progress of a generation under construction."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from memory.index.file_generation_writer import FileGenerationWriter
from memory.index.fingerprint import Fingerprint
from memory.status.home import build_status
from memory.status.index import build_progress, seconds_left
from memory.store.options import StoreOptions
from recalld.runs.status import status_lines
from schemas.settings import Settings
from schemas.status import IndexCounts
from tests.quiet_health import QuietHealth
from tests.storing import document, key, vector
from tests.written_index import write_index


def test_a_build_says_what_it_holds_of_what_it_will(settings: Settings, workspace: Path) -> None:
    for number in range(4):
        (workspace / "memory" / f"{number}.md").write_text(f"note {number}\n", "utf-8")
    write_index(settings)
    writer = FileGenerationWriter(settings.indexes_path / "main", StoreOptions())
    assert build_progress(writer, documents=4, rate=0.0) is None
    new = writer.open_writer(Fingerprint("other", "{}"))[0]
    new.write([document(key("memory/0.md"), "note", "zero", vectors=[vector(1)])])
    state = build_progress(writer, documents=4, rate=2.0)
    assert state is not None
    assert (state.generation, state.files, state.of_files) == (writer.next(), 1, 4)
    assert (state.chunks, state.vectors_ready, state.vectors_pending) == (2, 1, 1)
    assert state.begun_at == pytest.approx(time.time(), abs=60)
    assert state.eta_seconds is not None

    answer = build_status(settings, QuietHealth())
    assert answer.agents[0].index.files == 4, "the old one answers"
    assert answer.agents[0].index.build == state.model_copy(update={"eta_seconds": None}), "no rate is known"
    lines = "\n".join(status_lines(answer.model_dump(mode="json", by_alias=True, exclude_none=True)))
    assert "(1 of 4 documents, 1 vector" in lines
    writer.close()


def test_the_rest_takes_as_long_as_the_work_before_and_vectors_come_at_their_rate() -> None:
    counts = IndexCounts(files=20, vectors_pending=50, last_commit_at=1_060.0)
    assert seconds_left(counts, began_at=1_000.0, documents=60, rate=5.0) == 60 * 40 / 20 + 10
    assert seconds_left(counts, began_at=1_000.0, documents=20, rate=5.0) == 10
    assert seconds_left(counts, began_at=1_000.0, documents=20, rate=0.0) is None
    assert seconds_left(IndexCounts(), began_at=1_000.0, documents=20, rate=5.0) is None
    assert seconds_left(IndexCounts(), began_at=None, documents=0, rate=0.0) == 0
