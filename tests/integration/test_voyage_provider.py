"""The voyageai SDK against a real HTTP server that behaves, and that does not."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory.embedding.providers.voyage import VoyageProvider, service_url
from memory.embedding.selection import choose_provider
from schemas.errors import Permanent, Terminal, Throttled, TooLarge, Transient
from schemas.settings import Credentials, MemorySettings
from tests.embedding_server import EmbeddingServer, Failure, embed
from tests.voyage_server import VoyageServer
from tests.waiting import wait_until

KEY = "pa-very-secret-0123456789"

Connect = Callable[..., VoyageProvider]


@pytest.fixture
def connect() -> Iterator[Connect]:
    made: list[VoyageProvider] = []

    def build(server: EmbeddingServer | str, *, api_key: str | None = KEY, **settings: Any) -> VoyageProvider:
        url = server if isinstance(server, str) else server.url
        remote = {"base_url": url, "api_key": api_key, **settings.pop("remote", {})}
        memory = MemorySettings.model_validate({"provider": "voyage", "remote": remote, **settings})
        provider = choose_provider(memory, Credentials()).provider
        assert isinstance(provider, VoyageProvider)
        made.append(provider)
        return provider

    yield build
    for provider in made:
        provider.close()


def expected(texts: list[str], dimensions: int = 64) -> np.ndarray:
    return np.stack([embed(text, dimensions) for text in texts])


def test_documents_and_queries_are_told_apart_and_nothing_is_cut_silently(connect: Connect) -> None:
    texts = ["sourdough needs a warm place", "北京的冬天很冷", "a\x00b \ud83d and 🚀"]
    with VoyageServer() as server:
        provider = connect(server)
        got = provider.embed_documents(texts[:2])
        assert got.vectors.dtype == np.float32
        assert np.array_equal(got.vectors, expected(texts[:2]))
        assert got.tokens == 6
        provider.embed_documents(texts[2:])
        provider.embed_query(" where does it rise? ")
        documents, odd, query = server.log
        assert documents.path == "/v1/embeddings"
        assert documents.body == {
            "input": texts[:2],
            "model": "voyage-4-large",
            "input_type": "document",
            "truncation": False,
            "encoding_format": "base64",
        }
        assert documents.headers["authorization"] == f"Bearer {KEY}"
        assert odd.inputs == ("a b \ufffd and 🚀",)
        assert (query.body["input_type"], query.inputs) == ("query", ("where does it rise?",))


def test_dimensions_input_types_model_and_headers_are_sent_when_set(connect: Connect) -> None:
    with VoyageServer() as server:
        provider = connect(
            server,
            model="voyage-4-nano",  # the SDK's own client would look for this one on this machine
            output_dimensionality=32,
            query_input_type="question",
            document_input_type="passage",
            remote={"headers": {"X-Team": "memory", "Authorization": "Bearer of-a-gateway"}},
        )
        assert provider.embed_documents(["one"]).vectors.shape == (1, 32)
        assert provider.embed_query("two").vectors.shape == (1, 32)
        document, query = server.log
        assert (document.body["output_dimension"], document.body["input_type"]) == (32, "passage")
        assert (query.body["input_type"], query.body["model"]) == ("question", "voyage-4-nano")
        assert (query.headers["x-team"], query.headers["authorization"]) == ("memory", "Bearer of-a-gateway")


TOO_MANY = (
    "Request to model 'voyage-4-large' failed. The max allowed tokens per submitted batch is 120000. "
    "Your batch has 121138 tokens after truncation. Please lower the number of tokens in the batch."
)
NO_CARD = "You have not yet added your payment method in the billing page and will have reduced rate limits of 3 RPM."


@pytest.mark.parametrize(
    ("failure", "error", "words"),
    [
        (Failure(status=401), Terminal, "check VOYAGE_API_KEY or remote.api_key"),
        (Failure(status=400, message="Model voyage-4-large is not supported."), Terminal, "check model"),
        (Failure(status=400, message=TOO_MANY), TooLarge, "refused the text"),
        (Failure(status=413, body="<h1>Too large</h1>"), TooLarge, "HTTP 413"),
        (
            Failure(status=422, body={"detail": [{"loc": ["body", "output_dimension"], "msg": "no"}]}),
            Terminal,
            "refused the setting output_dimension",
        ),
        (Failure(status=429, message=NO_CARD), Throttled, "added your payment method"),
        (Failure(status=429, body={"error": "not the SDK's format"}), Throttled, "slow down"),
        (Failure(status=529), Throttled, "slow down"),
        (Failure(status=503, headers={"Retry-After": "3"}), Throttled, "slow down"),
        (Failure(status=502, body="<html>bad gateway</html>"), Transient, "HTTP 502"),
        (Failure(status=522), Transient, "HTTP 522"),
        (Failure(status=307, headers={"Location": "/v1/elsewhere"}), Terminal, "check remote.base_url"),
        (Failure(disconnect=True), Transient, "connection to voyage"),
        (Failure(raw=b"<html>welcome</html>"), Transient, "remote.base_url"),
        (Failure(raw=b"\xff\xfe"), Transient, "remote.base_url"),
        (Failure(raw=b'{"detail": "no"}'), Transient, "remote.base_url"),
    ],
)
def test_every_failure_has_its_class_says_what_to_do_and_is_not_repeated(
    connect: Connect, failure: Failure, error: type[Exception], words: str
) -> None:
    with VoyageServer() as server:
        server.fail_next(failure)
        with pytest.raises(error) as caught:
            connect(server).embed_documents(["one", "two"])
        assert type(caught.value) is error
        assert words in str(caught.value)
        assert server.requests == 1


def test_the_time_to_wait_is_read_whatever_the_answer_looks_like(connect: Connect) -> None:
    with VoyageServer() as server:
        provider = connect(server)
        for body in (None, {"error": "not the SDK's format"}, "<html>slow</html>"):
            server.fail_next(Failure(status=429, headers={"Retry-After": "7"}, body=body))
            with pytest.raises(Throttled) as caught:
                provider.embed_documents(["one"])
            assert caught.value.retry_after == 7


def test_no_message_and_no_log_holds_a_key_or_a_text(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with VoyageServer() as server:
        provider = connect(server, remote={"headers": {"X-Api-Key": "another-secret"}})
        provider.embed_documents(["the text of a private note"])
        for status in (307, 400, 401, 403, 404, 429, 500):
            server.fail_next(Failure(status=status, message=f"bad key {KEY} another-secret " + "x" * 5000))
            with pytest.raises((Permanent, Terminal, Transient)) as caught:
                provider.embed_documents(["the text of a private note"])
            assert KEY not in str(caught.value)
            assert "another-secret" not in str(caught.value)
            assert len(str(caught.value)) < 600
    assert KEY not in caplog.text
    assert "private note" not in caplog.text


def test_neither_the_environment_nor_netrc_gives_a_key(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password private\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("VOYAGE_API_KEY", "pa-of-the-environment")
    with VoyageServer() as server:
        connect(server).embed_documents(["one"])
        connect(server, api_key=None).embed_documents(["one"])
        assert [request.headers["authorization"] for request in server.log] == [f"Bearer {KEY}", "Bearer unused"]


def test_providers_that_share_a_thread_do_not_share_keys_or_addresses(connect: Connect) -> None:
    with VoyageServer() as one, VoyageServer() as two:
        first = connect(one, remote={"headers": {"X-Team": "first"}})
        second = connect(two, api_key="pa-second")
        for _ in range(2):
            first.embed_documents(["one"])
            second.embed_documents(["two"])
        assert {(r.headers["authorization"], r.headers["x-team"]) for r in one.log} == {(f"Bearer {KEY}", "first")}
        assert {(r.headers["authorization"], r.headers.get("x-team")) for r in two.log} == {("Bearer pa-second", None)}


def test_closing_leaves_no_connection_open_and_the_next_request_makes_a_new_one(connect: Connect) -> None:
    with VoyageServer() as server:
        provider = connect(server)
        threads = [threading.Thread(target=provider.embed_documents, args=([f"text {i}"],)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.connections
        provider.close()
        wait_until(lambda: server.connections == 0)
        assert provider.embed_documents(["again"]).vectors.shape == (1, 64)
        assert server.inputs == 5


def test_the_address_is_the_one_that_the_sdk_would_take() -> None:
    own = importlib.import_module("voyageai").util.get_default_base_url
    for key in (KEY, "al-of-atlas"):
        assert service_url(key) == own(key)


def test_the_sdk_is_imported_when_it_is_used_and_prints_no_text() -> None:
    script = """
import sys
from memory.embedding.selection import choose_provider
from schemas.settings import Credentials
from schemas.settings import MemorySettings
from tests.voyage_server import VoyageServer
with VoyageServer() as server:
    memory = MemorySettings.model_validate({"provider": "voyage", "remote": {"base_url": server.url}})
    provider = choose_provider(memory, Credentials(voyage="pa-key")).provider
    assert "voyageai" not in sys.modules
    assert provider.embed_query("hello").vectors.shape == (1, 64)
    provider.close()
"""
    root = Path(__file__).parents[2]
    environment = {"PATH": "/usr/bin:/bin", "VOYAGE_LOG": "debug"}
    command = [sys.executable, "-W", "error", "-c", script]
    run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
