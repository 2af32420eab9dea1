"""A list of results says nothing twice."""

from __future__ import annotations

import pytest

from memory.search.ranking.overlap import Overlap, comparable_texts, overlap_of, repeats
from memory.store.reader import ChunkRow
from schemas.documents import DocumentKey

NOTE = DocumentKey("memory", "memory/a.md")


def row(ordinal: int, first: int, text: str, *, key: DocumentKey = NOTE) -> ChunkRow:
    return ChunkRow(
        id=ordinal, key=key, ordinal=ordinal, start_line=first, end_line=first + text.count("\n"), text=text
    )


LINES = [f"line number {n}" for n in range(1, 21)]


WHOLE = "\n".join(LINES[:10])

TALKS = [DocumentKey("sessions", f"sessions/{name}.jsonl") for name in "abc"]


@pytest.mark.parametrize(
    ("one", "better", "repeated"),
    [
        pytest.param(row(1, 4, "\n".join(LINES[3:12])), row(0, 1, WHOLE), True, id="most of it"),
        pytest.param(row(0, 1, WHOLE), row(1, 4, "\n".join(LINES[3:12])), True, id="most of it, the other way"),
        pytest.param(row(1, 3, "\n".join(LINES[2:5])), row(0, 1, WHOLE), True, id="a part"),
        pytest.param(row(9, 400, WHOLE), row(0, 1, WHOLE), True, id="the same text further down"),
        pytest.param(row(1, 9, "\n".join(LINES[8:18])), row(0, 1, WHOLE), False, id="the overlap of neighbours"),
        pytest.param(row(1, 1, WHOLE, key=DocumentKey("memory", "b.md")), row(0, 1, WHOLE), False, id="another note"),
        pytest.param(row(1, 7, "the second half of it"), row(0, 7, "the first half"), False, id="one long line"),
    ],
)
def test_a_chunk_repeats_a_better_one(one: ChunkRow, better: ChunkRow, repeated: bool):
    assert repeats(one, [better]) is repeated


TALK = "[2026-02-03 09:00] User: Where is the key?\n[2026-02-03 09:01] Assistant: Behind the green door."
NOTE = "# Session\n\n**User**: Where is the key?\n\n**Assistant**: Behind the green door."


@pytest.mark.parametrize(
    ("note", "repeated"),
    [(NOTE, True), (NOTE.replace("**", ""), False), (NOTE.replace("green", "red"), False)],
    ids=["its messages", "a note about something else", "other messages"],
)
def test_a_conversation_and_the_note_made_of_it_are_one_result(note: str, repeated: bool):
    talk, quoting = row(0, 1, TALK, key=TALKS[0]), row(1, 1, note, key=DocumentKey("memory", "2026-02-03-0900.md"))
    assert repeats(talk, [quoting]) is repeats(quoting, [talk]) is repeated


def test_letters_at_the_ends_of_a_cut_line_that_happen_to_be_the_same_are_not_shared():
    assert overlap_of(row(0, 7, "so much for the cat"), row(1, 7, "t-shirts are next")) is None
    assert overlap_of(row(0, 7, "so much for the cat"), row(1, 7, "the cat sleeps")) == Overlap(12, 0, 7)


def told(*texts: str, about: str = "key") -> list[str]:
    """Texts that chunks of as many transcripts show to a reader who asks about something."""
    said = comparable_texts([row(number, 1, text, key=TALKS[number]) for number, text in enumerate(texts)], [about])
    return [said[number] for number in range(len(texts))]


def test_when_a_message_was_said_is_not_what_it_says():
    one, two, other = told(
        "[2026-02-03 09:00] User: Where is the key?\n[2026-02-03 09:01] Assistant: Behind the door.",
        "[2026-05-06 10:07] User: Where is the key?\n[2026-05-06 10:08] Assistant: Behind the door.",
        "[2026-02-03 09:00] User: Where is the key?\n[2026-02-03 09:01] Assistant: In the chest.",
    )
    assert one == two != other


def test_copies_of_a_conversation_are_one_where_they_matched_and_not_beyond():
    going_on = "\n".join(f"User: Go on {n}." for n in range(30))
    common = f"User: Where is the key?\nAssistant: Behind the door.\n{going_on}"
    ends = [f"{common}\nAssistant: {word} it is." for word in ("Red", "Blue", "Green")]
    assert len(set(told(*ends))) == 1
    assert len(set(told(*ends, about="it is"))) == 3
    assert len(set(told(*ends, about="blue"))) == 3, "what nothing matched is told apart by all of it"
