"""Texts that are too long for a model are embedded in pieces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memory.chunking.chunker import estimate_tokens
from memory.embedding.coordination import Item, alone
from memory.embedding.providers.provider import Embeddings
from memory.embedding.providers.stub import StubProvider
from memory.embedding.rate_limit import Urgency
from memory.embedding.sender import BatchSender, Outcome, cut_in_pieces
from memory.store.writer import Refusal
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


def item(text: str) -> Item:
    return Item(text, estimate_tokens(text))


def sent(provider: StubProvider, *texts: str) -> list[Outcome]:
    sender = BatchSender(provider, alone(provider), stopping=threading.Event(), patience_seconds=0.0)
    return list(sender.outcomes([item(text) for text in texts], urgency=Urgency.LIVE))


@given(st.text(min_size=0, max_size=3000))
def test_pieces_put_together_are_the_text_but_for_what_is_empty(text: str) -> None:
    before = 1
    for pieces in cut_in_pieces(item(text)):
        assert len(pieces) <= 32
        assert "".join("".join(piece.text for piece in pieces).split()) == "".join(text.split())
        assert max(len(piece.text) for piece in pieces) <= len(text) / before
        before *= 2


def test_a_text_that_is_too_long_gets_the_mean_of_its_pieces_and_others_their_own() -> None:
    provider = Short(most=300)
    outcomes = sent(provider, "one short text", LONG, "another one")
    vectors = {place: row for outcome in outcomes for place, row in zip(outcome.places, outcome.result, strict=True)}  # type: ignore[arg-type]
    assert sorted(vectors) == [0, 1, 2]
    whole = StubProvider().embed_documents([LONG, "something else entirely"]).vectors
    assert float(vectors[1] @ whole[0]) > 0.95
    assert abs(float(vectors[1] @ whole[1])) < 0.4
    assert abs(float(np.linalg.norm(vectors[1])) - 1) < 1e-5


def test_a_text_that_is_refused_in_any_pieces_is_refused_after_a_few_requests() -> None:
    provider = Short(most=0)
    (outcome,) = sent(provider, LONG)
    # An endpoint that refuses every text is recognised by a harmless one first.
    assert not isinstance(outcome.result, Refusal)
    picky = Short(most=10)
    outcomes = sent(picky, "a short", LONG)
    assert [one.result for one in outcomes if 1 in one.places] == [TOO_LONG]
    assert picky.requests <= 10
