"""Slots of the ends of sessions: kept in place, used again, and readable whatever a killed process left in them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from producers.session_ends import (
    ENDED,
    MOST_SLOTS,
    NOTED,
    OPEN,
    RESERVED_SLOTS,
    SLOT_BYTES,
    EndUnkept,
    SessionEnd,
    SessionEnds,
)


@pytest.fixture
def ends(tmp_path: Path) -> SessionEnds:
    ends = SessionEnds(tmp_path)
    ends.reserve()
    return ends


def test_the_space_of_a_few_hundred_ends_is_taken_before_they_come(tmp_path: Path, ends: SessionEnds) -> None:
    stat = (tmp_path / "session-ends").stat()
    assert stat.st_size == stat.st_blocks * 512 == RESERVED_SLOTS * SLOT_BYTES
    assert stat.st_mode & 0o077 == 0
    for number in range(RESERVED_SLOTS):
        ends.put(SessionEnd(number, "main", f"/s/{number}.jsonl"))
    ends.reserve()
    assert [end.path for end in ends.all()] == [f"/s/{number}.jsonl" for number in range(RESERVED_SLOTS)]
    assert (tmp_path / "session-ends").stat().st_size == stat.st_size


def test_an_end_takes_the_place_of_its_earlier_record(ends: SessionEnds) -> None:
    for at in (1, 2):
        ends.put(SessionEnd(at, "main", "/s/a.jsonl", "codex", OPEN))
    ends.put(SessionEnd(2, "main", "/s/a.jsonl", "codex", ENDED))
    ends.put(SessionEnd(2, "other", "/s/a.jsonl", "codex", ENDED))
    ends.put(SessionEnd(3, "main", "/s/a.jsonl", "codex", ENDED))
    ends.put(SessionEnd(2, "main", "/s/a.jsonl", "codex", NOTED, last_digest="x"))
    assert [(end.at, end.agent, end.state) for end in ends.all()] == [
        (2, "main", NOTED),
        (2, "other", ENDED),
        (3, "main", ENDED),
    ]
    ends.drop(*ends.all()[:2])
    assert [end.at for end in ends.all()] == [3]


def test_slots_that_a_killed_process_left_half_written_are_free(tmp_path: Path, ends: SessionEnds) -> None:
    ends.put(SessionEnd(1, "main", "/s/a.jsonl"))
    with (tmp_path / "session-ends").open("r+b") as file:
        for place, left in enumerate([b'{"at": 2, "agent": "ma', b"[1]", b'{"unknown": 1}', b"\xff\xfe"], 1):
            file.seek(place * SLOT_BYTES)
            file.write(left)
    assert [end.at for end in ends.all()] == [1]
    for number in range(2, 6):
        ends.put(SessionEnd(number, "main", f"/s/{number}.jsonl"))
    assert [end.at for end in ends.all()] == [1, 2, 3, 4, 5]


def test_without_a_free_slot_the_oldest_note_is_forgotten_and_no_end(tmp_path: Path, ends: SessionEnds) -> None:
    record = SessionEnd(0, "main", "/s/a.jsonl")
    slots = [SessionEnd(number, "main", "/s/a.jsonl", state=NOTED if number > 1 else ENDED) for number in range(4)]
    with (tmp_path / "session-ends").open("r+b") as file:
        file.truncate(0)
        file.truncate(MOST_SLOTS * SLOT_BYTES)
    for end in slots:
        ends.put(end)
    data = (tmp_path / "session-ends").read_bytes()[: 4 * SLOT_BYTES]
    (tmp_path / "session-ends").write_bytes(data + data[:SLOT_BYTES] * (MOST_SLOTS - 4))
    for at in (7, 8):
        ends.put(SessionEnd(at, "main", "/s/b.jsonl"))
    assert {end.at for end in ends.all()} == {0, 1, 7, 8}
    with pytest.raises(EndUnkept):
        ends.put(SessionEnd(9, "main", "/s/b.jsonl"))
    assert ends.all().count(record) == MOST_SLOTS - 3


def test_an_end_longer_than_a_slot_and_one_without_the_file_are_refused(tmp_path: Path, ends: SessionEnds) -> None:
    with pytest.raises(ValueError, match="too long"):
        ends.put(SessionEnd(1, "main", "/" + "x" * SLOT_BYTES))
    (tmp_path / "session-ends").unlink()
    (tmp_path / "session-ends").mkdir()
    with pytest.raises(EndUnkept):
        ends.put(SessionEnd(1, "main", "/s/a.jsonl"))


def test_writers_take_turns(ends: SessionEnds) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda at: ends.put(SessionEnd(at, "main", "/s/a.jsonl")), range(100)))
    assert [end.at for end in ends.all()] == list(range(100))
