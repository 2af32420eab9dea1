"""Answers of endpoints that speak OpenAI's or Voyage's format, as one matrix."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np

from memory.embedding.providers.provider import Embeddings
from schemas.errors import Terminal, Transient


def no_embeddings() -> Transient:
    """Return what to raise for an answer that is something else."""
    return Transient("the endpoint's answer holds no embeddings: see that remote.base_url is an address of its API")


def read_answer(answer: Any, *, expected: int) -> Embeddings:
    """Return the vectors of a parsed body in the order of their inputs, and the tokens it counted.

    An embedding is base64 of little-endian float32, or a list of numbers.

    Raises:
        Transient: not an embeddings response, or not one vector for each input.
    """
    try:
        data = answer["data"]
        order = [entry.get("index", place) for place, entry in enumerate(data)]
        rows = [_row(entry["embedding"]) for entry in data]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise no_embeddings() from error
    if len(rows) != expected:
        raise Transient(f"the endpoint returned {len(rows)} vectors for {expected} texts")
    # `False` is an int and equal to 0.
    if not all(type(place) is int for place in order) or sorted(order) != list(range(expected)):
        raise Transient("the endpoint returned vectors whose index fields do not match the texts")
    widths = {row.shape[0] for row in rows}
    if len(widths) != 1:
        raise Transient(f"the endpoint returned vectors of different dimensions: {sorted(widths)}")
    matrix = np.empty((expected, widths.pop()), dtype=np.float32)
    for place, row in zip(order, rows, strict=True):
        matrix[place] = row
    return Embeddings(matrix, _billed(answer))


def check_dimensions(answer: Embeddings, *, asked: int | None, name: str, model: str) -> None:
    """Raise Terminal for vectors of another width than was asked for."""
    width = answer.vectors.shape[1]
    if asked is not None and width != asked:
        raise Terminal(
            f"{name} returned {width} dimensions though {asked} were asked for: "
            f"the model {model} does not support output_dimensionality, unset it"
        )


def _billed(answer: Mapping[str, Any]) -> int | None:
    usage = answer.get("usage")
    tokens = usage.get("total_tokens") if isinstance(usage, Mapping) else None
    return tokens if type(tokens) is int and tokens > 0 else None


def _row(embedding: object) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    if isinstance(embedding, str):
        return np.frombuffer(binascii.a2b_base64(embedding), dtype="<f4")
    if not isinstance(embedding, list):
        raise TypeError("an embedding is neither base64 nor a list")
    # A null among the numbers becomes NaN, which is dealt with row by row.
    row: np.ndarray[tuple[int], np.dtype[np.float32]] = np.array(embedding, dtype=np.float32)
    if row.ndim != 1 or not row.size:
        raise TypeError("an embedding is a list of lists, or empty")
    return row
