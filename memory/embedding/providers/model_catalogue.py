"""Catalogue of models that are fetched by name (models.toml), and the fetching of one into the cache folder.

Every file is pinned by repository, revision, size and SHA-256. The small files of an export (pooling, prompts, most
tokens) are written from the catalogue, because some exports lack the prompts.

A file that is named as hf:owner/repository/file.gguf has no pin in the catalogue. The first pull keeps the revision,
size and SHA-256 that the hub states (https://huggingface.co/docs/huggingface_hub/package_reference/file_download).
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memory.embedding.providers.onnx_model import content_digest
from memory.embedding.providers.provider import ProviderUnavailable
from memory.http.loopback import is_loopback
from memory.http.whole_files import write_whole
from schemas.errors import UserError
from schemas.settings import hub_file
from schemas.version import install_command

if TYPE_CHECKING:
    import httpx2

#: Begin of the name of a file of the hub, and the file beside it with its pin.
HUB_SCHEME, _PIN = "hf:", "pin.json"

#: Where models come from unless the person says otherwise.
HUB = "https://huggingface.co"

#: Times that a broken transfer is taken up again without a new byte.
_MOST_BREAKS = 3

#: Seconds without a byte after which a transfer counts as broken.
_SILENT_SECONDS = 30.0

_NO_HUB = "see that this machine reaches the hub; the bundled model needs no network"

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
    languages: str = ""
    licence: str = ""
    score: float = 0.0
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
        if self.name.startswith(HUB_SCHEME):
            return cache / "hf" / self.name.removeprefix(HUB_SCHEME)
        return cache / "-".join([self.name, *(file.revision[:12] for file in self.files[:1])])


def _catalogue() -> dict[str, ListedModel]:
    listed = tomllib.loads(Path(__file__).with_name("models.toml").read_text("utf-8"))
    return {
        name: ListedModel(name, **{**facts, "files": tuple(ModelFile(**file) for file in facts.get("files", ()))})
        for name, facts in listed.items()
    }


#: By name, the best score first.
CATALOGUE = _catalogue()


def listed_model(name: str, cache: Path | None = None) -> ListedModel | None:
    """Return the model of this name, one of the hub with its pin if it is in the `cache`; None for a path."""
    if not name.startswith(HUB_SCHEME):
        return CATALOGUE.get(name)
    model = ListedModel(name, hub_file(name)[0])
    folder = model.folder(cache or Path())
    for pin in (folder / _PIN, folder.with_name(f"{folder.name}.part") / _PIN):
        with suppress(OSError, ValueError, TypeError):
            return replace(model, files=(ModelFile(**json.loads(pin.read_text("utf-8"))),))
    return model


def check_fetched(model: ListedModel, cache: Path) -> None:
    """Raise ProviderUnavailable unless the files of a fetched model are those that are pinned."""
    folder = model.folder(cache)
    again = f"remove {folder} and fetch it again with `recalld model pull {model.name}`"
    if not model.files:
        raise ProviderUnavailable(f"{folder / _PIN} is lost or damaged", again)
    for file in model.files:
        if content_digest(folder / file.name, cache) != file.sha256:
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
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (cache / "fetching.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _fetch_folder(model, folder, hub, on_bytes)
    except OSError as error:
        raise UserError(f"{model.name} cannot be kept in {cache}: {error.strerror or error}") from error
    check_fetched(model, cache)
    return folder


def pinned(model: ListedModel, *, hub: str) -> ListedModel:
    """Return a model of the hub with its pin, at first the revision, size and SHA-256 that the hub states now.

    Raises:
        UserError: the hub cannot be reached, or does not state them.
    """
    if model.files:
        return model
    _, path = hub_file(model.name)
    url, why = f"{hub.rstrip('/')}/{model.source}/resolve/main/{path}", "it names no revision, size and SHA-256"
    digest = revision = size = ""
    client = _client()
    import httpx2

    try:
        with client:
            answer = client.head(url, headers={"accept-encoding": "identity"})
        why = f"HTTP {answer.status_code}" if answer.is_error else why
        # The hub states them in its redirect to the file, which may follow one to the repository's new name.
        for headers in (each.headers for each in (answer, *answer.history) if "x-linked-etag" in each.headers):
            digest, revision = headers["x-linked-etag"].strip('"'), headers.get("x-repo-commit", "")
            size = headers.get("x-linked-size", "")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        why = str(error) or type(error).__name__
    if not (re.fullmatch("[0-9a-f]{64}", digest) and re.fullmatch("[0-9a-f]{40}", revision) and size.isdecimal()):
        raise UserError(f"{url} could not be fetched ({why}): {_NO_HUB}")
    return replace(model, files=(ModelFile(Path(path).name, model.source, revision, path, int(size), digest),))


def _client() -> httpx2.Client:
    try:
        import httpx2
    except ImportError as error:
        raise UserError(f"fetching a model needs httpx2: {install_command('onnx')}") from error
    hooks = {"request": [_check_place]}
    return httpx2.Client(follow_redirects=True, timeout=_SILENT_SECONDS, event_hooks=hooks)


def _fetch_folder(model: ListedModel, folder: Path, hub: str, on_bytes: Callable[[int], None]) -> None:
    draft = folder.with_name(f"{folder.name}.part")
    missing = sum(file.size - _size_of(draft / file.name) for file in model.files)
    free = shutil.disk_usage(folder.parent).free
    if missing + _SPARE_BYTES > free:
        raise UserError(
            f"{model.name} needs {missing / 1e6:,.0f} MB and {folder.parent} has {free / 1e6:,.0f} MB free: make room, "
            "or set local.model_cache_dir to a folder on another disk"
        )
    draft.mkdir(exist_ok=True)
    if model.name.startswith(HUB_SCHEME):
        write_whole(draft / _PIN, json.dumps(asdict(model.files[0])).encode())
    try:
        with _client() as client:
            for file in model.files:
                _fetch_file(client, file, draft / file.name, hub, on_bytes)
    finally:
        if not any(_size_of(draft / file.name) for file in model.files):
            shutil.rmtree(draft)
    if not model.name.startswith(HUB_SCHEME):
        pooling = {"embedding_dimension": model.dimensions, "pooling_mode": model.pooling}
        (draft / "1_Pooling").mkdir(exist_ok=True)
        (draft / "1_Pooling" / "config.json").write_text(json.dumps(pooling), "utf-8")
        prompts = {"prompts": dict(model.prompts)}
        (draft / "config_sentence_transformers.json").write_text(json.dumps(prompts), "utf-8")
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
            raise UserError(f"{url} could not be fetched ({why}): {_NO_HUB}")
    if content_digest(path, None) != file.sha256:
        path.unlink()
        raise UserError(f"{url} is not the file that is pinned (its SHA-256 is another one): nothing of it was kept")


def _check_place(request: httpx2.Request) -> None:
    """Raise UserError rather than send a request, or follow a redirect, in the clear."""
    if request.url.scheme != "https" and not is_loopback(request.url.host):
        raise UserError(f"the hub leads to {request.url}, and models are fetched over https only")


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
