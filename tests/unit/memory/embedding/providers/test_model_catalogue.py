"""The catalogue, and fetching: over a redirect, once, verified, taken up again, and never half."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.embedding.providers.model_catalogue import (
    CATALOGUE,
    ListedModel,
    check_fetched,
    fetch,
    listed_model,
    pinned,
)
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


# A file of the hub -----------------------------------------------------------------------------------------

NAME = "hf:people/tiny/sub/tiny.gguf"


@pytest.fixture
def gguf(hub: ModelHub) -> Path:
    """A file in the hub's repository."""
    (hub.folder / "sub").mkdir()
    (hub.folder / "sub" / "tiny.gguf").write_bytes(b"GGUF" * 1000)
    return hub.folder / "sub" / "tiny.gguf"


def pulled(hub: ModelHub, cache: Path) -> tuple[ListedModel, Path]:
    model = listed_model(NAME, cache)
    assert model is not None
    model = pinned(model, hub=hub.url)
    return model, fetch(model, cache, hub=hub.url, on_bytes=lambda _count: None)


def test_a_file_of_the_hub_keeps_the_pin_of_its_first_pull(hub: ModelHub, gguf: Path, cache: Path) -> None:
    hub.break_after, hub.breaks = 1000, 2
    model, folder = pulled(hub, cache)
    assert (folder / "tiny.gguf").read_bytes() == gguf.read_bytes()
    assert folder == cache / "hf" / "people" / "tiny" / "sub" / "tiny.gguf"
    assert hub.ranges == [0, 1000, 2000]
    hub.status = 503
    assert pulled(hub, cache) == (model, folder), "the hub is not asked again"
    (folder / "tiny.gguf").write_bytes(b"GGUF" * 999 + b"FUGG")
    for spoilt in ("tiny.gguf", "pin.json"):
        model = listed_model(NAME, cache) or model
        with pytest.raises(ProviderUnavailable, match=f"{spoilt} .*`recalld model pull {NAME}`"):
            check_fetched(model, cache)
        (folder / "pin.json").write_text("{}")


def test_a_broken_pull_goes_on_with_its_pin_after_the_hub_has_a_newer_file(
    hub: ModelHub, gguf: Path, cache: Path
) -> None:
    model = listed_model(NAME, cache)
    assert model is not None
    first = pinned(model, hub=hub.url)

    def stop(count: int) -> None:
        if count > 0:
            raise UserError("interrupted")

    with pytest.raises(UserError, match="interrupted"):
        fetch(first, cache, hub=hub.url, on_bytes=stop)
    hub.states = {"X-Linked-Etag": f'"{"0" * 64}"'}
    again, folder = pulled(hub, cache)
    assert (again, (folder / "tiny.gguf").read_bytes()) == (first, gguf.read_bytes())


@pytest.mark.parametrize(
    ("states", "spoils", "status", "words"),
    [
        ({"X-Linked-Etag": '"0123"'}, False, 200, "names no revision, size and SHA-256"),
        ({"X-Repo-Commit": "main"}, False, 200, "names no revision, size and SHA-256"),
        ({"X-Linked-Size": ""}, False, 200, "names no revision, size and SHA-256"),
        ({}, False, 404, "HTTP 404"),
        ({}, True, 200, "is not the file that is pinned"),
    ],
)
def test_a_hub_that_states_no_hash_or_sends_another_file_leaves_nothing(
    hub: ModelHub, gguf: Path, cache: Path, states: dict[str, str], spoils: bool, status: int, words: str
) -> None:
    hub.states, hub.spoils, hub.status = states, spoils, status
    with pytest.raises(UserError, match=words):
        pulled(hub, cache)
    assert not [path for path in cache.glob("hf/**/*") if path.is_file()]


# The catalogue itself -------------------------------------------------------------------------------------


def test_every_file_of_the_catalogue_is_pinned() -> None:
    for model in CATALOGUE.values():
        assert {file.name for file in model.files} in ({"model.onnx", "tokenizer.json"}, set())
        assert not model.files or (model.dimensions and model.tokens)
        for file in model.files:
            assert re.fullmatch("[0-9a-f]{40}", file.revision)
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert file.size > 100_000
