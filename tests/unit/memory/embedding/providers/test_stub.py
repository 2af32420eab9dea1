"""The stub provider: deterministic, and near means sharing words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from memory.embedding.providers.stub import StubProvider


def test_texts_that_share_words_are_near_each_other() -> None:
    stub = StubProvider()
    notes = stub.embed_documents(
        ["the bread needs yeast", "the engine needs oil", "北京的冬天很冷", "上海的夏天很热"]
    ).vectors
    assert notes.shape == (4, 64)
    assert np.allclose(np.linalg.norm(notes, axis=1), 1, atol=1e-6)
    assert (notes @ stub.embed_query("bread and yeast").vectors[0]).argmax() == 0
    assert (notes @ stub.embed_query("北京冬天").vectors[0]).argmax() == 2


def test_every_process_gets_the_same_numbers() -> None:
    script = """
from memory.embedding.providers.stub import StubProvider
print(StubProvider().embed_query("a note 笔记").vectors.tobytes().hex())
"""
    root = Path(__file__).parents[5]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], cwd=root, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {StubProvider().embed_query("a note 笔记").vectors.tobytes().hex().encode() + b"\n"}


def test_text_without_words_has_a_vector_too() -> None:
    assert np.isfinite(StubProvider().embed_documents(["!!!", "\ud800", "🚀"]).vectors).all()
