"""What `recalld up` says of how far indexing is."""

from __future__ import annotations

from typing import Any

from recalld.up_progress import line


def state(*, files: int = 2, ready: int = 3, failed: int = 0, **vectors: Any) -> dict[str, Any]:
    return {
        "index": {"files": files, "vectorsReady": ready},
        "deadLetters": [{}] * failed,
        "vectors": vectors,
    }


def test_what_failed_is_not_said_to_be_up_to_date() -> None:
    assert line([state(), state()], 0, 0) == "up to date: 4 documents, 6 chunks with vectors"
    assert line([state(failed=1), state(failed=2)], 0, 0) == (
        "up to date: 4 documents, 6 chunks with vectors; 3 failed: see `recalld dead list`"
    )
    assert line([state(failed=1)], 5, 0) == (
        "2 documents searchable by keyword, 5 to go; 1 failed: see `recalld dead list`"
    )


def test_one_document_is_no_documents() -> None:
    assert line([state(files=1, ready=1)], 0, 0) == "up to date: 1 document, 1 chunk with vectors"
    assert line([state(files=1)], 1, 0) == "1 document searchable by keyword, 1 to go"


def test_a_rate_is_told_only_when_there_is_one() -> None:
    states = [state(etaSeconds=10.0)]
    assert line(states, 0, 5) == "2 documents searchable by keyword; vectors 3 of 8, about 10 s left"
    assert "0.4 a second" in line([state(etaSeconds=10.0, rate=0.41)], 0, 5)


def test_the_slowest_agent_says_how_long_it_takes() -> None:
    states = [state(etaSeconds=10.0, rate=2.0), state(etaSeconds=200.0, rate=1.0)]
    assert line(states, 0, 220) == ("4 documents searchable by keyword; vectors 6 of 226, 3 a second, about 3 min left")
