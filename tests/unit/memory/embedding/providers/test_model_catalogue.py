"""The catalogue, and fetching: over a redirect, once, verified, taken up again, and never half."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memory.embedding.providers.model_catalogue import CATALOGUE, check_fetched, fetch
from memory.embedding.providers.provider import ProviderUnavailable
from memory.embedding.selection import choose_provider
from schemas.errors import UserError
from schemas.settings import Credentials, MemorySettings
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
    return fetch(hub.model(), cache, hub=hub.url, told=told.append), sum(told)


def left(cache: Path) -> set[str]:
    """What is in the cache besides locks and digests."""
    return {path.name for path in cache.iterdir()} - {"fetching.lock", "digests"}


def test_a_model_is_fetched_verified_and_used_like_a_folder_of_one_s_own(hub: ModelHub, cache: Path) -> None:
    folder, told = fetched(hub, cache)
    model = hub.model()
    assert folder == cache / "tiny-0123456789ab"
    assert told == model.size
    assert left(cache) == {folder.name}
    memory = MemorySettings.model_validate({"local": {"model_path": str(folder), "model_cache_dir": cache}})
    provider = choose_provider(memory, Credentials()).provider
    assert provider is not None
    near = provider.embed_documents(["the cat sleeps"]).vectors @ provider.embed_query("feline").vectors.T
    assert (
        near.item() > (provider.embed_documents(["boiler"]).vectors @ provider.embed_query("feline").vectors.T).item()
    )
    prompts = json.loads((folder / "config_sentence_transformers.json").read_text())["prompts"]
    assert prompts == {"query": "query: ", "document": "passage: "}


@pytest.mark.parametrize(("ignores_ranges", "ranges"), [(False, [0, 1000, 2000]), (True, [0, 1000, 1000])])
def test_a_transfer_that_breaks_goes_on_where_it_stopped(
    hub: ModelHub, cache: Path, ignores_ranges: bool, ranges: list[int]
) -> None:
    hub.break_after, hub.breaks, hub.ignores_ranges = 1000, 2, ignores_ranges
    _, told = fetched(hub, cache)
    assert hub.ranges[:3] == ranges
    assert told == hub.model().size


def test_a_transfer_that_a_person_ended_goes_on_where_it_stopped(hub: ModelHub, cache: Path) -> None:
    came: list[int] = []

    def stop(count: int) -> None:
        came.append(count)
        if sum(came) > 0:
            raise KeyboardInterrupt

    hub.break_after, hub.breaks = 1000, 1
    with pytest.raises(KeyboardInterrupt):
        fetch(hub.model(), cache, hub=hub.url, told=stop)
    assert left(cache) == {"tiny-0123456789ab.part"}
    folder, told = fetched(hub, cache)
    assert hub.ranges[:2] == [0, 1000]
    assert told == hub.model().size
    assert left(cache) == {folder.name}


def test_a_connection_that_always_breaks_is_one_sentence_and_goes_on_later(hub: ModelHub, cache: Path) -> None:
    hub.break_after = 0
    with pytest.raises(UserError, match="could not be fetched"):
        fetched(hub, cache)
    assert not cache.joinpath("tiny-0123456789ab").exists()
    hub.break_after = None
    assert fetched(hub, cache)[0].is_dir()


def test_another_content_is_refused_and_nothing_of_it_kept(hub: ModelHub, cache: Path) -> None:
    hub.spoils = True
    with pytest.raises(UserError, match="SHA-256"):
        fetched(hub, cache)
    assert left(cache) == set()


def test_more_bytes_than_are_pinned_are_refused(hub: ModelHub, cache: Path) -> None:
    (hub.folder / "endless").write_bytes(b"x" * 20_000_000)
    [endless] = hub.model("endless").files
    pinned = replace(endless, size=1000, sha256=hashlib.sha256(b"x" * 1000).hexdigest())
    told: list[int] = []
    with pytest.raises(UserError, match="SHA-256"):
        fetch(replace(hub.model(), files=(pinned,)), cache, hub=hub.url, told=told.append)
    assert sum(told) < 2_000_000
    assert left(cache) == set()


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
        fetch(hub.model(), cache, hub=address or hub.url, told=lambda _count: None)
    assert left(cache) == set()


def test_a_disk_without_room_is_said_before_anything_is_asked_for(hub: ModelHub, cache: Path) -> None:
    [first, *rest] = hub.model().files
    vast = replace(hub.model(), files=(replace(first, size=10**18), *rest))
    with pytest.raises(UserError, match="MB free: make room"):
        fetch(vast, cache, hub=hub.url, told=lambda _count: None)
    assert (hub.ranges, left(cache)) == ([], set())


def test_a_folder_where_nothing_can_be_kept_is_one_sentence(hub: ModelHub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be kept"):
        fetched(hub, tmp_path / "file" / "models")


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
