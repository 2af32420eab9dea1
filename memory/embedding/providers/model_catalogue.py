"""Catalogue of models that are fetched by name (models.toml), and the fetching of one into the cache folder.

Every file is pinned by repository, revision, size and SHA-256. The small files of an export (pooling, prompts, most
tokens) are written from the catalogue, because some exports lack the prompts.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from memory.embedding.providers.onnx_model import content_digest
from memory.embedding.providers.provider import ProviderUnavailable
from schemas.errors import UserError
from schemas.version import install_command

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
    """One model of the catalogue. Without `files` the user has to export it from `source`."""

    name: str
    source: str
    languages: str
    licence: str
    score: float
    dimensions: int | None = None
    tokens: int = 0
    pooling: str = "mean"
    prompts: Mapping[str, str] = field(default_factory=dict)
    files: tuple[ModelFile, ...] = ()

    @property
    def size(self) -> int | None:
        """Bytes to fetch."""
        return sum(file.size for file in self.files) or None

    def folder(self, cache: Path) -> Path:
        """Return where the model is once it was fetched."""
        return cache / "-".join([self.name, *(file.revision[:12] for file in self.files[:1])])


def _catalogue() -> dict[str, ListedModel]:
    listed = tomllib.loads(Path(__file__).with_name("models.toml").read_text("utf-8"))
    return {
        name: ListedModel(name, **{**facts, "files": tuple(ModelFile(**file) for file in facts.get("files", ()))})
        for name, facts in listed.items()
    }


#: By name, the best score first.
CATALOGUE = _catalogue()


def check_fetched(model: ListedModel, cache: Path) -> None:
    """Raise ProviderUnavailable unless the files of a fetched model are those that are pinned."""
    folder = model.folder(cache)
    for file in model.files:
        if content_digest(folder / file.name, cache) != file.sha256:
            again = f"remove {folder} and fetch it again with `recalld model pull {model.name}`"
            raise ProviderUnavailable(f"{folder / file.name} is not what was fetched", again)


def fetch(model: ListedModel, cache: Path, *, hub: str, on_bytes: Callable[[int], None]) -> Path:
    """Fetch a model into the cache folder unless it is there; return its folder.

    `on_bytes` receives the number of bytes of each part as it comes. A broken transfer continues where it stopped, in
    a later call as well. The folder gets its name once all files are there and verified.

    Raises:
        UserError: the hub cannot be reached or sends something else, or the disk is full.
        ProviderUnavailable: the files in the folder are damaged.
    """
    folder = model.folder(cache)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "fetching.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _fetch_folder(model, folder, hub, on_bytes)
    except OSError as error:
        raise UserError(f"{model.name} cannot be kept in {cache}: {error.strerror or error}") from error
    check_fetched(model, cache)
    return folder


def _fetch_folder(model: ListedModel, folder: Path, hub: str, on_bytes: Callable[[int], None]) -> None:
    try:
        import httpx2
    except ImportError as error:
        raise UserError(f"fetching a model needs httpx2: {install_command('onnx')}") from error
    draft = folder.with_name(f"{folder.name}.part")
    missing = sum(file.size - _size_of(draft / file.name) for file in model.files)
    free = shutil.disk_usage(folder.parent).free
    if missing + _SPARE_BYTES > free:
        raise UserError(
            f"{model.name} needs {missing / 1e6:,.0f} MB and {folder.parent} has {free / 1e6:,.0f} MB free: make room, "
            "or set local.model_cache_dir to a folder on another disk"
        )
    draft.mkdir(exist_ok=True)
    hooks = {"request": [_check_place]}
    try:
        with httpx2.Client(follow_redirects=True, timeout=_SILENT_SECONDS, event_hooks=hooks) as client:
            for file in model.files:
                _fetch_file(client, file, draft / file.name, hub, on_bytes)
    finally:
        if not any(draft.iterdir()):
            draft.rmdir()
    pooling = {"embedding_dimension": model.dimensions, "pooling_mode": model.pooling}
    (draft / "1_Pooling").mkdir(exist_ok=True)
    (draft / "1_Pooling" / "config.json").write_text(json.dumps(pooling), "utf-8")
    (draft / "config_sentence_transformers.json").write_text(json.dumps({"prompts": dict(model.prompts)}), "utf-8")
    (draft / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": model.tokens}), "utf-8")
    draft.rename(folder)


def _fetch_file(client: httpx2.Client, file: ModelFile, path: Path, hub: str, on_bytes: Callable[[int], None]) -> None:
    import httpx2

    url = f"{hub.rstrip('/')}/{file.repository}/resolve/{file.revision}/{file.path}"
    breaks = 0
    on_bytes(_size_of(path))
    while (size := _size_of(path)) < file.size:
        why, headers = "it stops before its end", {"range": f"bytes={size}-", "accept-encoding": "identity"}
        try:
            with client.stream("GET", url, headers=headers) as answer, path.open("ab") as content:
                if answer.status_code == 200:  # the whole file instead of the requested range
                    on_bytes(-size)
                    content.truncate(0)
                elif answer.status_code != 206:
                    why, breaks = f"HTTP {answer.status_code}", _MOST_BREAKS
                for data in answer.iter_raw() if answer.is_success else ():
                    content.write(data)
                    on_bytes(len(data))
                    if content.tell() > file.size:
                        break
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            why = str(error) or type(error).__name__
        breaks = 0 if _size_of(path) > size else breaks + 1
        if breaks >= _MOST_BREAKS:
            if not size:
                path.unlink(missing_ok=True)
            raise UserError(
                f"{url} could not be fetched ({why}): see that this machine reaches the hub; "
                "the bundled model needs no network"
            )
    if content_digest(path, None) != file.sha256:
        path.unlink()
        raise UserError(f"{url} is not the file that is pinned (its SHA-256 is another one): nothing of it was kept")


def _check_place(request: httpx2.Request) -> None:
    """Raise UserError rather than send a request, or follow a redirect, in the clear."""
    if request.url.scheme != "https" and request.url.host not in {"127.0.0.1", "::1", "localhost"}:
        raise UserError(f"the hub leads to {request.url}, and models are fetched over https only")


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
