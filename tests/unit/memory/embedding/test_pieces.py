"""Texts that are too long for a model are embedded in pieces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memory.embedding.coordination import Item, alone
from memory.embedding.providers.provider import Embeddings
from memory.embedding.providers.stub import StubProvider
from memory.embedding.sender import BatchSender, Result, cut_in_pieces
from memory.store.writer import Refusal
from schemas.documents import Lane
from schemas.errors import TooLarge

TOO_LONG = Refusal("too long for the model")
LONG = " ".join(f"word{number}" for number in range(120))


class Short(StubProvider):
    """Takes texts of at most so many characters."""

    def __init__(self, most: int, rule: Callable[[Sequence[str]], None] = lambda texts: None) -> None:
        super().__init__()
        self.most = most
        self.rule = rule

    def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        if any(len(text) > self.most for text in texts):
            self.requests += 1
            raise TooLarge("HTTP 400", reason=TOO_LONG.reason)
        self.rule(texts)
        return super().embed_documents(texts)


def sent(provider: StubProvider, *texts: str) -> dict[str, Result]:
    """Send texts, and return the row or the refusal of each."""
    sender = BatchSender(provider, alone(provider), stopping=threading.Event(), patience_seconds=0.0)
    results: dict[str, Result] = {}
    for items, result in sender.results([Item(text) for text in texts], lane=Lane.LIVE):
        rows = result if isinstance(result, np.ndarray) else [result] * len(items)
        results.update(zip((item.text for item in items), rows, strict=True))
    return results


@given(st.text(min_size=0, max_size=3000))
def test_pieces_put_together_are_the_text_but_for_what_is_empty(text: str) -> None:
    before = 1
    for pieces in cut_in_pieces(Item(text)):
        assert len(pieces) <= 32
        assert "".join("".join(piece.text for piece in pieces).split()) == "".join(text.split())
        assert max(len(piece.text) for piece in pieces) <= len(text) / before
        before *= 2


def test_a_text_that_is_too_long_gets_the_mean_of_its_pieces_and_others_their_own() -> None:
    provider = Short(most=300)
    vectors = sent(provider, "one short text", LONG, "another one")
    assert vectors.keys() == {"one short text", LONG, "another one"}
    whole = StubProvider().embed_documents([LONG, "something else entirely"]).vectors
    vector = vectors[LONG]
    assert isinstance(vector, np.ndarray)
    assert float(vector @ whole[0]) > 0.95
    assert abs(float(vector @ whole[1])) < 0.4
    assert abs(float(np.linalg.norm(vector)) - 1) < 1e-5


def test_a_text_that_is_refused_in_any_pieces_is_refused_after_a_few_requests() -> None:
    provider = Short(most=0)
    # An endpoint that refuses every text is recognised by a harmless one first.
    assert not isinstance(sent(provider, LONG)[LONG], Refusal)
    picky = Short(most=10)
    assert sent(picky, "a short", LONG)[LONG] == TOO_LONG
    assert picky.requests <= 10
