from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.chunking.chunker import Chunk, estimate_tokens
from memory.transcripts.packing import PackedMessage, Packer, messages_of
from tests.examples import examples

_AT = 1770109200.0

_TEXTS = st.one_of(
    st.text(st.sampled_from("ab 。\n你好🙂.é\r"), min_size=1, max_size=60),
    st.builds(
        lambda text, times: text * times,
        st.sampled_from(["word ", "你好。", "line\n", "x", "🙂", "\n\n\n"]),
        st.integers(1, 2000),
    ),
).filter(str.strip)


def packed(
    messages: list[str], *, tokens: int = 100, overlap: int = 20, max_bytes: int = 8191, speaker: str = "User"
) -> list[Chunk]:
    packer = Packer(tokens=tokens, overlap=overlap, max_bytes=max_bytes)
    for number, text in enumerate(messages, start=1):
        packer.add(number, _AT + 60 * number, f"{speaker}: ", text)
    return [*packer.take(), *packer.open()]


def test_messages_share_a_chunk_until_it_is_full() -> None:
    (first, second) = packed(["one", "two\nlines", "x " * 190])
    assert first == Chunk(0, 1, 2, "User: one\nUser: two\nlines", first.text_hash, _AT + 120)
    assert second.text.startswith("User: x x")
    assert (second.ordinal, second.start_line, second.end_line, second.said_at) == (1, 3, 3, _AT + 180)


@pytest.mark.parametrize(
    ("question", "overlap", "lines"),
    [("a question?", 20, [(1, 2), (2, 3)]), ("a question?", 0, [(1, 2), (3, 3)]), ("q " * 60, 20, [(1, 2), (3, 3)])],
)
def test_a_chunk_repeats_whole_messages_worth_the_overlap(
    question: str, overlap: int, lines: list[tuple[int, int]]
) -> None:
    chunks = packed(["a " * 100, question, "b " * 120], overlap=overlap)
    assert [(chunk.start_line, chunk.end_line) for chunk in chunks] == lines
    repeated = f"User: {question}\n" if lines[1][0] == 2 else ""
    assert chunks[1].text.startswith(f"{repeated}User: b b")


@settings(deadline=None, max_examples=examples(40))
@given(
    st.lists(_TEXTS, max_size=12),
    st.integers(32, 400),
    st.integers(0, 200),
    st.integers(160, 4000),
    st.sampled_from(["User", "Assistant", "名" * 40]),
)
def test_no_chunk_exceeds_its_bounds_and_lines_go_on_without_a_gap(
    messages: list[str], tokens: int, overlap: int, max_bytes: int, speaker: str
) -> None:
    chunks = packed(messages, tokens=tokens, overlap=overlap, max_bytes=max_bytes, speaker=speaker)
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        assert estimate_tokens(chunk.text) <= tokens
        assert len(chunk.text.encode()) <= max_bytes
        assert 1 <= chunk.start_line <= chunk.end_line <= len(messages)
    for earlier, later in pairwise(chunks):
        assert earlier.start_line <= later.start_line
        assert earlier.end_line <= later.end_line
        assert later.start_line <= earlier.end_line + 1
    if messages:
        assert (chunks[0].start_line, chunks[-1].end_line) == (1, len(messages))


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(_TEXTS.map(str.strip), max_size=8), st.integers(60, 200))
def test_without_an_overlap_the_chunks_hold_all_of_every_message_once(messages: list[str], tokens: int) -> None:
    chunks = packed(messages, tokens=tokens, overlap=0)
    words = "".join("".join(chunk.text.split()) for chunk in chunks).replace("User:", "")
    assert words == "".join("".join(messages).split())


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(_TEXTS, max_size=10), st.integers(0, 10))
def test_going_on_from_a_kept_state_changes_nothing(messages: list[str], stop: int) -> None:
    new = partial(Packer, tokens=60, overlap=20, max_bytes=400)
    packer = new()
    taken: list[Chunk] = []
    for number, text in enumerate(messages):
        if number == stop:
            taken += packer.take()
            packer = new(state=packer.state())
        packer.add(number + 1, None, "User: ", text)
    whole = new()
    for number, text in enumerate(messages):
        whole.add(number + 1, None, "User: ", text)
    assert [*taken, *packer.take(), *packer.open()] == [*whole.take(), *whole.open()]


@pytest.mark.parametrize(
    ("chunk", "messages"),
    [
        (
            "[2026-02-03 09:00] User: Which port?\nAssistant: I mean the old one\n[2026-02-03 09:01] Assistant: 8080",
            [(True, "Which port?\nAssistant: I mean the old one\n"), (False, "8080")],
        ),
        ("User: Which port?\nAssistant: 8080", [(True, "Which port?\n"), (False, "8080")]),
        ("[2026-02-03 09:00] Mia: hello", [(True, "hello")]),
        ("the rest of a message\nUser: thanks", [(False, "the rest of a message\n"), (True, "thanks")]),
    ],
    ids=["with times", "without times", "a named person", "before the first label"],
)
def test_a_chunk_tells_the_messages_of_users_from_the_others(chunk: str, messages: list[tuple[bool, str]]) -> None:
    assert list(messages_of(chunk)) == [PackedMessage(is_users, text) for is_users, text in messages]
