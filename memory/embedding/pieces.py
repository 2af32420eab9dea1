"""A text that is too long for a model: embedded in pieces, whose mean stands for it. Pure.

The mean weighted by length, brought to unit length again, is what OpenAI's cookbook does with long inputs
(https://cookbook.openai.com/examples/embedding_long_inputs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from memory.chunking.chunker import estimate_tokens
from memory.embedding.metering import Item
from memory.embedding.provider import Matrix

#: Pieces of the first try; doubled each time up to the most.
_FEWEST_PIECES, _MOST_PIECES = 2, 32

#: Characters that a piece should have at least.
_SHORTEST_PIECE = 40


def cut_in_pieces(item: Item) -> Iterator[list[Item]]:
    """Cut a text into 2, 4, 8 ... pieces of about the same length; as often as it makes sense."""
    pieces = _FEWEST_PIECES
    while pieces <= _MOST_PIECES and len(item.text) >= pieces * _SHORTEST_PIECE:
        parts = [part for part in _cut(item.text, pieces) if part.strip()]
        yield [Item(part, estimate_tokens(part), item.agent) for part in parts]
        pieces *= 2


def mean_of(pieces: Sequence[Item], vectors: Matrix) -> Matrix:
    """The mean of unit vectors, weighted by their pieces' tokens; shape (1, dimensions), not of unit length."""
    weights = np.array([piece.tokens for piece in pieces], dtype=np.float32)
    mean: Matrix = (weights[None, :] @ vectors) / weights.sum()
    return mean


def _cut(text: str, pieces: int) -> Iterator[str]:
    """The text's parts, cut at a space or line end near the places where equal parts would end."""
    start = 0
    for number in range(1, pieces):
        ideal = len(text) * number // pieces
        reach = len(text) // pieces // 4
        space = max(text.rfind(" ", ideal - reach, ideal), text.rfind("\n", ideal - reach, ideal))
        end = space + 1 if space > start else ideal
        yield text[start:end]
        start = end
    yield text[start:]
