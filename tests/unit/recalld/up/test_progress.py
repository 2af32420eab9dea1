"""What `recalld up` says of how far indexing is."""

from __future__ import annotations

from recalld.up.progress import Sum, line


def test_what_failed_is_not_said_to_be_up_to_date() -> None:
    assert line(Sum(files=4, vectors_ready=6)) == "up to date: 4 documents, 6 chunks with vectors"
    assert line(Sum(files=4, vectors_ready=6, failed=3)) == (
        "up to date: 4 documents, 6 chunks with vectors; 3 failed: see `recalld dead list`"
    )
    assert line(Sum(files=2, failed=1, behind=5)) == (
        "2 documents searchable by keyword, 5 to go; 1 failed: see `recalld dead list`"
    )


def test_a_sum_that_lacks_agents_says_so() -> None:
    assert line(Sum(files=4, vectors_ready=6, uncounted=2)).endswith("; 2 agents are not counted: see `recalld status`")
    assert line(Sum(files=4, behind=1, uncounted=1)).endswith("; 1 agent is not counted: see `recalld status`")


def test_one_document_is_no_documents() -> None:
    assert line(Sum(files=1, vectors_ready=1)) == "up to date: 1 document, 1 chunk with vectors"
    assert line(Sum(files=1, behind=1)) == "1 document searchable by keyword, 1 to go"


def test_a_rate_is_told_only_when_there_is_one() -> None:
    foreseen = Sum(files=2, vectors_ready=3, lacking=5, eta_seconds=10.0)
    assert line(foreseen) == "2 documents searchable by keyword; vectors 3 of 8, about 10 s left"
    assert "0.4 a second" in line(Sum(lacking=5, eta_seconds=10.0, rate=0.41))


def test_documents_without_any_vectors_are_up_to_date_by_keyword_only() -> None:
    assert line(Sum(files=2, embeds=False)) == "up to date: 2 documents, by keyword only"
