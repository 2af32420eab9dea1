"""The catalogue, and fetching: over a redirect, once, verified, taken up again, and never half."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.embedding.providers.model_catalogue import CATALOGUE, check_fetched, fetch
from memory.embedding.providers.provider import ProviderUnavailable
from schemas.errors import UserError
from tests.model_hub import ModelHub
from tests.tiny_model import write_model


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ModelHub]:
    with ModelHub(write_model(tmp_path / "published")) as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "home" / "cache" / "models"


def fetched(hub: ModelHub, cache: Path) -> tuple[Path, int]:
    """The folder of the model, and how many bytes were told of."""
    told: list[int] = []
    return fetch(hub.model(), cache, hub=hub.url, on_bytes=told.append), sum(told)


def left(cache: Path) -> set[str]:
    """Return the entries of the cache besides locks and digests."""
    return {path.name for path in cache.iterdir()} - {"fetching.lock", "digests"}


@pytest.mark.parametrize(("ignores_ranges", "ranges"), [(False, [0, 1000, 2000]), (True, [0, 1000, 1000])])
def test_a_transfer_that_breaks_goes_on_where_it_stopped(
    hub: ModelHub, cache: Path, ignores_ranges: bool, ranges: list[int]
) -> None:
    hub.break_after, hub.breaks, hub.ignores_ranges = 1000, 2, ignores_ranges
    _, told = fetched(hub, cache)
    assert hub.ranges[:3] == ranges
    assert told == hub.model().size


def test_a_redirect_off_https_is_not_followed(hub: ModelHub, cache: Path) -> None:
    hub.moves_to = "http://cdn.example"
    with pytest.raises(UserError, match=r"cdn\.example.*over https only"):
        fetched(hub, cache)


@pytest.mark.parametrize(
    ("status", "address", "words"),
    [
        (404, None, "HTTP 404"),
        (503, None, "HTTP 503"),
        (200, "http://127.0.0.1:1", "the bundled model needs no network"),
        (200, "http://hub.example", "over https only"),
        (200, "ftp://127.0.0.1", "could not be fetched"),
        (200, "hub.example", "fetched"),
        (200, "http://[", "fetched"),
    ],
)
def test_what_cannot_be_fetched_is_one_sentence_and_leaves_nothing(
    hub: ModelHub, cache: Path, status: int, address: str | None, words: str
) -> None:
    hub.status = status
    with pytest.raises(UserError, match=words):
        fetch(hub.model(), cache, hub=address or hub.url, on_bytes=lambda _count: None)
    assert left(cache) == set()


def test_a_fetched_model_that_was_changed_is_not_used(hub: ModelHub, cache: Path) -> None:
    folder, _ = fetched(hub, cache)
    model = hub.model()
    check_fetched(model, cache)
    (folder / "model.onnx").write_bytes(b"something else")
    with pytest.raises(ProviderUnavailable, match="recalld model pull tiny"):
        check_fetched(model, cache)
    shutil.rmtree(folder)
    assert fetched(hub, cache)[0] == folder


# The catalogue itself -------------------------------------------------------------------------------------


def test_every_file_of_the_catalogue_is_pinned() -> None:
    for model in CATALOGUE.values():
        assert {file.name for file in model.files} in ({"model.onnx", "tokenizer.json"}, set())
        assert not model.files or (model.dimensions and model.tokens)
        for file in model.files:
            assert re.fullmatch("[0-9a-f]{40}", file.revision)
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert file.size > 100_000
