"""The bundled model's weights, shared by the processes of a host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memory.embedding.providers.local import UseProvider

TEXTS = ["The gateway listens on port 8443.", "数据库迁移推迟到下个月", "naïve café — déjà vu"]


@pytest.fixture(scope="module")
def plain() -> np.ndarray:
    return UseProvider().embed_documents(TEXTS).vectors


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
