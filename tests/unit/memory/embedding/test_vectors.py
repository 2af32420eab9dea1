"""Rounding on arrival: the cache and the index hold the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.embedding.vectors import matrix_from_bytes16, round_rows, to_bytes16
from schemas.errors import Transient
from tests.examples import examples


@given(st.integers(0, 2**32 - 1), st.sampled_from([32, 64, 384, 512]), st.floats(1e-4, 1e12))
@settings(max_examples=examples(60), deadline=None)
def test_a_vector_from_the_cache_is_bit_for_bit_the_one_that_was_handed_out(
    seed: int, width: int, scale: float
) -> None:
    raw = (np.random.default_rng(seed).standard_normal((7, width)) * scale).astype(np.float32)
    rounded = round_rows(raw, expected=7, dimensions=width)[0]
    blobs = to_bytes16(rounded)
    assert [len(blob) for blob in blobs] == [2 * width] * 7
    assert np.array_equal(matrix_from_bytes16(blobs), rounded)


def test_rounded_vectors_have_unit_length_and_the_old_direction() -> None:
    raw = np.random.default_rng(7).standard_normal((20, 512)).astype(np.float32) * 40
    rounded = round_rows(raw, expected=20, dimensions=None)[0]
    assert rounded.dtype == np.float32
    assert np.allclose(np.linalg.norm(rounded, axis=1), 1, atol=1e-6)
    assert ((raw * rounded).sum(axis=1) / np.linalg.norm(raw, axis=1)).min() > 0.99999


@pytest.mark.parametrize(
    ("raw", "expected", "dimensions", "words"),
    [
        (np.ones((2, 4)), 3, 4, "2 vectors for 3 texts"),
        (np.ones((2, 4)), 2, 8, "4 dimensions instead of 8"),
        (np.ones(4), 1, None, "shape"),
        (np.ones((1, 0)), 1, None, "shape"),
    ],
)
def test_what_is_not_one_vector_for_each_text_is_refused(
    raw: np.ndarray, expected: int, dimensions: int | None, words: str
) -> None:
    with pytest.raises(Transient, match=words):
        round_rows(raw.astype(np.float32), expected=expected, dimensions=dimensions)


def test_vectors_that_are_zero_or_not_finite_are_unusable() -> None:
    raw = np.array([[1.0, np.nan], [1.0, np.inf], [0.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    assert round_rows(raw, expected=4, dimensions=None)[1].tolist() == [True, True, True, False]


def test_values_whose_squares_leave_float32_keep_their_direction() -> None:
    raw = np.array([[3e25, 4e25], [3e-9, 4e-9]], dtype=np.float32)
    assert np.allclose(round_rows(raw, expected=2, dimensions=2)[0], [[0.6, 0.8], [0.6, 0.8]], atol=1e-3)
