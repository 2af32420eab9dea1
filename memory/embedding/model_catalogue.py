"""Models that are fetched by name: which ones there are, and fetching one into the cache folder.

Every file is pinned by repository, revision, size and SHA-256, as several public projects have recorded them. What
exports say in small files (pooling, prompts, most tokens) is written from here, as some of them leave the prompts out.

Scores are the mean NDCG@10, in per cent, of the seven episodic and dialogue tasks of LMEB in the results of MTEB
(https://github.com/embeddings-benchmark/results, f4cc6c8), measured at full precision. Dimensions and licences:
https://github.com/embeddings-benchmark/mteb, mteb/models/model_implementations. What is not known is None.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memory.embedding.local import UnusableModel
from memory.embedding.onnx_model import content_digest
from schemas.errors import UserError

if TYPE_CHECKING:
    import httpx2

#: Where models come from unless the person says otherwise.
HUB = "https://huggingface.co"

#: Times that a broken transfer is taken up again without a new byte.
_MOST_BREAKS = 3

#: Seconds without a byte after which a transfer counts as broken.
_SILENT_SECONDS = 30.0

#: Free bytes that stay on the disk.
_SPARE_BYTES = 100_000_000

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a hub's repository, and its `name` in the model's folder."""

    name: str
    repository: str
    revision: str
    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One model of the catalogue. Without `files` it has to be exported by the user, from `source`."""

    name: str
    source: str
    languages: str
    licence: str
    score: float
    dimensions: int | None = None
    tokens: int = 0
    pooling: str = "mean"
    query_prompt: str = ""
    document_prompt: str = ""
    files: tuple[ModelFile, ...] = ()

    @property
    def size(self) -> int | None:
        """Bytes to fetch."""
        return sum(file.size for file in self.files) or None

    def folder(self, cache: Path) -> Path:
        """Return where the model is once it was fetched."""
        revision = self.files[0].revision[:12] if self.files else "own"
        return cache / f"{self.name}-{revision}"

    def own_files(self) -> dict[str, object]:
        """Return the small JSON files of the folder, by name."""
        modes = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
        return {
            "1_Pooling/config.json": {"word_embedding_dimension": self.dimensions, modes[self.pooling]: True},
            "config_sentence_transformers.json": {
                "prompts": {"query": self.query_prompt, "document": self.document_prompt}
            },
            "sentence_bert_config.json": {"max_seq_length": self.tokens},
        }


def _files(*files: tuple[str, str, str, int, str], revision: str) -> tuple[ModelFile, ...]:
    return tuple(ModelFile(name, repository, revision, path, size, sha) for name, repository, path, size, sha in files)


_ARCTIC = "Snowflake/snowflake-arctic-embed-m-v2.0"
_BEKKO = "hotchpotch/bekko-embedding-v1-a8m"

#: By name, the best score first.
CATALOGUE = {
    model.name: model
    for model in (
        # Its authors publish no ONNX export.
        ListedModel("stella-400M", "NovaSearch/stella_en_400M_v5", "English", "MIT", 55.1),
        ListedModel(
            "multilingual-e5-large",
            "intfloat/multilingual-e5-large",
            "100",
            "MIT",
            53.3,
            dimensions=1024,
            tokens=512,
            query_prompt="query: ",
            document_prompt="passage: ",
            files=(
                ModelFile(
                    "model.onnx",
                    "Xenova/multilingual-e5-large",
                    "00fc3aeb3dbb95842de2ac1961d33c6319acf57b",
                    "onnx/model_quantized.onnx",
                    561_768_762,
                    "0a8d65db9a36f810ba5da15249f13145fcdc7890e6656f1fd38cd8b7c4db1fca",
                ),
                ModelFile(
                    "tokenizer.json",
                    "intfloat/multilingual-e5-large",
                    "3d7cfbdacd47fdda877c5cd8a79fbcc4f2a574f3",
                    "tokenizer.json",
                    17_082_660,
                    "62c24cdc13d4c9952d63718d6c9fa4c287974249e16b7ade6d5a85e7bbb75626",
                ),
            ),
        ),
        ListedModel(
            "arctic-embed-m-v2.0",
            _ARCTIC,
            "74",
            "Apache-2.0",
            52.7,
            dimensions=768,
            tokens=8192,
            pooling="cls",
            query_prompt="query: ",
            files=_files(
                (
                    "model.onnx",
                    _ARCTIC,
                    "onnx/model_int8.onnx",
                    310_916_060,
                    "03d923bb1850ebdccb068e2f3abd8aa43fe81c50d07d037ef103fe3d0fb78e3b",
                ),
                (
                    "tokenizer.json",
                    _ARCTIC,
                    "tokenizer.json",
                    17_083_009,
                    "f1cc44ad7faaeec47241864835473fd5403f2da94673f3f764a77ebcb0a803ec",
                ),
                revision="95c2741480856aa9666782eb4afe11959938017f",
            ),
        ),
        ListedModel(
            "e5-small-v2",
            "intfloat/e5-small-v2",
            "English",
            "MIT",
            49.2,
            dimensions=384,
            tokens=512,
            query_prompt="query: ",
            document_prompt="passage: ",
            files=_files(
                (
                    "model.onnx",
                    "Xenova/e5-small-v2",
                    "onnx/model_quantized.onnx",
                    34_014_367,
                    "7d9092cb25f2bd1c023b7e8d2aa459044a02030ac880e5a59fdaf27af69f1ded",
                ),
                (
                    "tokenizer.json",
                    "Xenova/e5-small-v2",
                    "tokenizer.json",
                    711_396,
                    "d241a60d5e8f04cc1b2b3e9ef7a4921b27bf526d9f6050ab90f9267a1f9e5c66",
                ),
                revision="02af79985278377e65c724a76275707cb0333c70",
            ),
        ),
        ListedModel(
            "bekko-a8m",
            _BEKKO,
            "110",
            "MIT",
            47.2,
            dimensions=384,
            tokens=8192,
            files=_files(
                (
                    "model.onnx",
                    _BEKKO,
                    "onnx/model.onnx",
                    130_099_079,
                    "96d8cc6199e96357b21b2fb12f6d7ffd2d4abc7b182fe94b5468fbd6dc819af7",
                ),
                (
                    "tokenizer.json",
                    _BEKKO,
                    "tokenizer.json",
                    34_363_442,
                    "8bd47075711f75a143d1b78e01a41cc65c1c591b00d3cfeffc23db07adce1392",
                ),
                revision="c721113d59a1d91b447450324f51c4b3332c924a",
            ),
        ),
    )
}


def check_installed(model: ListedModel, folder: Path, kept: Path | None) -> None:
    """Raise UnusableModel unless the files in `folder` are those that are pinned; `kept` as in `content_digest`."""
    for file in model.files:
        if content_digest(folder / file.name, kept) != file.sha256:
            raise UnusableModel(
                f"{folder / file.name} is not what was fetched",
                f"remove {folder} and fetch it again with `recalld model pull {model.name}`",
            )


def fetch(model: ListedModel, cache: Path, *, hub: str, told: Callable[[int], None]) -> Path:
    """Fetch a model into the cache folder unless it is there, and return its folder; `told` hears bytes as they come.

    A transfer that breaks goes on where it stopped, in a later call as well. The folder gets its name once all of it
    is there and verified.

    Raises:
        UserError: the hub cannot be reached or sends something else, or the disk is full.
        UnusableModel: what is there is damaged.
    """
    folder = model.folder(cache)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache / "fetching.lock"):
            if folder.is_dir():
                check_installed(model, folder, cache)
                return folder
            draft = cache / f"{folder.name}.part"
            draft.mkdir(exist_ok=True)
            try:
                _fetch_files(model, draft, hub, told)
            finally:
                if not any(draft.iterdir()):
                    draft.rmdir()
            for name, content in model.own_files().items():
                path = draft / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(content), "utf-8")
            draft.rename(folder)
    except OSError as error:
        raise UserError(f"{model.name} cannot be kept in {cache}: {error.strerror or error}") from error
    check_installed(model, folder, cache)  # keeps the digests for the processes that use it
    return folder


def _fetch_files(model: ListedModel, draft: Path, hub: str, told: Callable[[int], None]) -> None:
    try:
        import httpx2
    except ImportError as error:
        raise UserError('fetching a model needs httpx2: pip install "recalld[onnx]"') from error
    missing = sum(file.size - _held(draft / file.name) for file in model.files)
    free = shutil.disk_usage(draft).free
    if missing + _SPARE_BYTES > free:
        raise UserError(
            f"{model.name} needs {missing / 1e6:,.0f} MB and {draft.parent} has {free / 1e6:,.0f} MB free: make room, "
            "or set local.model_cache_dir to a folder on another disk"
        )
    hooks = {"request": [_check_place]}
    with httpx2.Client(follow_redirects=True, max_redirects=5, timeout=_SILENT_SECONDS, event_hooks=hooks) as client:
        for file in model.files:
            _fetch_file(client, file, draft / file.name, hub, told)


def _fetch_file(client: httpx2.Client, file: ModelFile, path: Path, hub: str, told: Callable[[int], None]) -> None:
    import httpx2

    url = f"{hub.rstrip('/')}/{file.repository}/resolve/{file.revision}/{file.path}"
    breaks = 0
    told(_held(path))
    while (held := _held(path)) < file.size:
        why = "the transfer stops before its end"
        headers = {"range": f"bytes={held}-", "accept-encoding": "identity"}
        try:
            with client.stream("GET", url, headers=headers) as answer:
                if answer.status_code not in {200, 206}:
                    raise _unreachable(url, f"HTTP {answer.status_code}")
                with path.open("ab") as content:
                    if answer.status_code != 206:  # all of it, whatever was asked for
                        told(-held)
                        content.truncate(0)
                    for data in answer.iter_raw():
                        content.write(data)
                        told(len(data))
                        if content.tell() > file.size:
                            break
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            why = str(error) or type(error).__name__
        breaks = 0 if _held(path) > held else breaks + 1
        if breaks >= _MOST_BREAKS:
            raise _unreachable(url, why)
    if content_digest(path, None) != file.sha256:
        path.unlink()
        raise UserError(f"{url} is not the file that is pinned (its SHA-256 is another one): nothing of it was kept")


def _check_place(request: httpx2.Request) -> None:
    """Raise UserError rather than send a request, or follow a redirect, in the clear."""
    if request.url.scheme != "https" and request.url.host not in _LOOPBACK:
        raise UserError(f"the hub leads to {request.url}, and models are fetched over https only")


def _unreachable(url: str, why: str) -> UserError:
    return UserError(
        f"{url} could not be fetched ({why}): see that this machine reaches the hub; the bundled model needs no network"
    )


def _held(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Let one process at a time fetch a model."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
