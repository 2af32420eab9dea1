"""Rounding of every vector on arrival, so that cache and index hold the same numbers.

check -> unit length -> float16 -> float32 -> unit length again. The cache keeps the float16 form, which
gives back exactly the float32 form that the index stores (below 32 dimensions one row in thousands may
differ in the fifth digit).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memory.embedding.providers.provider import Matrix
from schemas.errors import Unusable
from schemas.lazy_module import LazyModule

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = LazyModule("numpy")

#: A vector shorter than this has no direction worth keeping.
SHORTEST = 1e-10

#: Rounding and normalising settle at once from 32 dimensions up; below, a few rows take some rounds.
_MOST_ROUNDS = 32


def round_rows(raw: Matrix, *, expected: int, dimensions: int | None) -> tuple[Matrix, npt.NDArray[np.bool_]]:
    """Check the shape and round the rows; returns (float32 unit rows, which rows are unusable).

    Unusable rows (zero or not finite) are zeros in the matrix. `raw` has shape (texts, dimensions);
    `dimensions` None accepts any width above 0.

    Raises:
        Unusable: another number of vectors than `expected`, or of dimensions.
    """
    matrix = np.asarray(raw)
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise Unusable(f"the endpoint returned an array of shape {matrix.shape} instead of one vector for each text")
    if matrix.shape[0] != expected:
        raise Unusable(f"the endpoint returned {matrix.shape[0]} vectors for {expected} texts")
    if dimensions is not None and matrix.shape[1] != dimensions:
        width = matrix.shape[1]
        reason = f"the endpoint returned vectors of {width} dimensions instead of {dimensions}"
        raise Unusable(reason, got=width, expected=dimensions)
    matrix = matrix.astype(np.float32)
    lengths = _lengths(matrix)
    unusable = ~np.isfinite(lengths) | (lengths < SHORTEST)
    if unusable.any():
        matrix[unusable] = 0.0
        lengths[unusable] = 1.0
    half = (matrix * _reciprocal(lengths)).astype(np.float16)
    rounded = _unit(half)
    unsettled = np.arange(expected)
    for _ in range(_MOST_ROUNDS):
        halves = rounded[unsettled].astype(np.float16)
        differs = (halves != half[unsettled]).any(axis=1)
        if not differs.any():
            break
        unsettled, halves = unsettled[differs], halves[differs]
        half[unsettled] = halves
        rounded[unsettled] = _unit(halves)
    return rounded, unusable


def to_bytes16(matrix: Matrix) -> list[bytes]:
    """Return rounded rows as little-endian float16, two bytes a dimension."""
    half = np.ascontiguousarray(matrix, dtype="<f2")
    return [row.tobytes() for row in half]


def matrix_from_bytes16(blobs: Sequence[bytes]) -> Matrix:
    """Return the rounded vectors of blobs of `to_bytes16`, of one width; shape (blobs, dimensions)."""
    return _unit(_half(blobs))


def sound_rows16(blobs: Sequence[bytes]) -> npt.NDArray[np.bool_]:
    """Return a mask of the blobs that hold a unit vector, of one width; damaged blobs do not."""
    with np.errstate(invalid="ignore", over="ignore"):
        sound: npt.NDArray[np.bool_] = np.abs(_lengths(_half(blobs).astype(np.float32)) - 1.0) < 0.01
    return sound


def _half(blobs: Sequence[bytes]) -> npt.NDArray[np.float16]:
    return np.frombuffer(b"".join(blobs), dtype="<f2").reshape(len(blobs), -1)


def _unit(half: npt.NDArray[np.float16]) -> Matrix:
    matrix = half.astype(np.float32)
    lengths = _lengths(matrix)
    lengths[lengths < SHORTEST] = 1.0
    matrix *= _reciprocal(lengths)
    return matrix


def _reciprocal(lengths: npt.NDArray[np.float64]) -> Matrix:
    column: Matrix = (1.0 / lengths).astype(np.float32)[:, None]
    return column


def _lengths(matrix: Matrix) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore", over="ignore"):
        lengths: npt.NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", matrix, matrix).astype(np.float64))
        odd = ~np.isfinite(lengths) | (lengths < 1e-15)
        if odd.any():
            # Squares of 1e30 or 1e-30 leave the range of float32; those of float64 do not.
            wide = matrix[odd].astype(np.float64)
            lengths[odd] = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    return lengths
