"""The bundled model, and what local models share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory.embedding.providers.local import LONGEST_TEXT, E5Provider, UseProvider
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


def test_a_text_s_vector_does_not_depend_on_its_batch(use: UseProvider) -> None:
    texts = [f"note number {i} about bread" for i in range(20)]
    assert np.allclose(use.embed_documents(texts).vectors[7], use.embed_documents([texts[7]]).vectors[0], atol=1e-5)


def test_texts_that_trip_models_up_are_cleaned_or_refused(use: UseProvider) -> None:
    matrix = use.embed_documents(["lone \ud800 surrogate", "nul \0 inside", "🚀", "\u200b"]).vectors
    assert np.isfinite(matrix).all()
    for empty in ("", "   ", "\n\t"):
        with pytest.raises(Permanent, match="nothing to embed"):
            use.embed_query(empty)
    assert use.embed_documents([]).vectors.shape == (0, 512)


def test_what_is_beyond_the_cap_is_cut_off(use: UseProvider) -> None:
    start = "bread " * (LONGEST_TEXT // 6 + 1)
    assert np.array_equal(
        use.embed_documents([start[:LONGEST_TEXT]]).vectors, use.embed_documents([start + "engine " * 100_000]).vectors
    )


def test_several_threads_load_the_model_once_and_agree() -> None:
    loads: list[int] = []

    class Counting(UseProvider):
        def _load(self, module: Any) -> Any:
            loads.append(1)
            return super()._load(module)

    provider = Counting()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: provider.embed_documents(["one note"]).vectors, range(4)))
    assert loads == [1]
    assert all(np.allclose(matrix, found[0], atol=1e-5) for matrix in found)


def test_requests_are_small_so_that_live_texts_get_in_between(use: UseProvider) -> None:
    assert use.limits.inputs / use.limits.chunks_per_second < 1.0
    assert 1 <= use.limits.concurrency <= 4


def test_a_model_that_fails_on_a_text_refuses_that_text() -> None:
    class Failing(UseProvider):
        def _encode(self, model: Any, texts: list[str], *, query: bool) -> Any:
            raise IndexError("list index out of range")

    with pytest.raises(Permanent, match="local model failed on it: IndexError"):
        Failing().embed_documents(["anything"])


@pytest.fixture(scope="module")
def e5() -> E5Provider:
    return E5Provider()


def test_e5_tells_queries_from_passages(e5: E5Provider) -> None:
    notes = ["The bakery opens at seven in the morning.", "季度收入增长了百分之九。"]
    matrix = e5.embed_documents(notes).vectors
    question = e5.embed_query("when can I buy bread?").vectors
    assert (matrix.shape, question.shape) == ((2, 384), (1, 384))
    assert matrix.dtype == np.float32
    assert (matrix @ question[0]).argmax() == 0
    assert not np.allclose(e5.embed_query(notes[0]).vectors, matrix[:1], atol=1e-3), "a query is not a passage"


def test_e5_survives_what_trips_c_code_up(e5: E5Provider) -> None:
    odd = ["start \0 rest of the note", "lone \ud800 surrogate", "🚀", "\u200b", "x" * 300]
    matrix = e5.embed_documents(odd).vectors
    assert np.isfinite(matrix).all()
    cut = e5.embed_documents(["start"]).vectors
    assert not np.allclose(matrix[:1], cut, atol=1e-3), "what follows a NUL is not lost"


def test_the_identities_of_local_models_differ() -> None:
    assert UseProvider().identity == '{"dimensions":512,"model":"multilingual-use-v3","provider":"local","revision":1}'
    assert E5Provider().identity != UseProvider().identity


# The bundled model's weights, shared by the processes of a host


TEXTS = ["The gateway listens on port 8443.", "数据库迁移推迟到下个月", "naïve café — déjà vu"]


@pytest.fixture(scope="module")
def plain(use: UseProvider) -> np.ndarray:
    return use.embed_documents(TEXTS).vectors


def test_mapped_weights_give_the_same_numbers_as_the_wheels_own(tmp_path: Path, plain: np.ndarray) -> None:
    first = UseProvider(model_cache_dir=tmp_path / "models").embed_documents(TEXTS).vectors
    (folder,) = (path for path in (tmp_path / "models").iterdir() if path.is_dir())
    assert (folder / "table.npy").stat().st_size > 60_000_000
    second = UseProvider(model_cache_dir=tmp_path / "models").embed_documents(TEXTS).vectors
    assert np.array_equal(first, plain)
    assert np.array_equal(second, plain)


@pytest.mark.long
def test_a_damaged_file_is_made_again(tmp_path: Path, plain: np.ndarray) -> None:
    UseProvider(model_cache_dir=tmp_path).warm_up()
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (folder / "proj_W.npy").write_bytes(b"not an array")
    assert np.array_equal(UseProvider(model_cache_dir=tmp_path).embed_documents(TEXTS).vectors, plain)
    assert not folder.exists(), "what is damaged goes"
    assert np.array_equal(UseProvider(model_cache_dir=tmp_path).embed_documents(TEXTS).vectors, plain)
    assert (folder / "proj_W.npy").stat().st_size > 1000


def test_a_folder_that_cannot_be_written_does_not_stop_the_model(tmp_path: Path, plain: np.ndarray) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert np.array_equal(UseProvider(model_cache_dir=blocked / "models").embed_documents(TEXTS).vectors, plain)
