"""Nested lines of transcripts exhaust the stack, where finalizers of other tests' objects could not run."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def _without_garbage_of_other_tests() -> None:
    """Finalize it now: a collection inside of a nested value would do so without room on the stack."""
    gc.collect()
