"""Every remote provider, through its SDK or over HTTP, against a real server that behaves, and that does not."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from memory.embedding.providers.exchange import Oversized
from memory.embedding.providers.presets import PRESETS
from memory.embedding.providers.remote import RemoteProvider
from memory.embedding.selection import choose_provider
from schemas.errors import Permanent, Terminal, Throttled, TooLarge, Transient, Unusable
from schemas.settings import Credentials, MemorySettings
from tests.embedding_server import EmbeddingServer, Failure, embed
from tests.provider_requests import AWS, ROWS, document
from tests.waiting import wait_until

KEY = "sk-very-secret-0123456789"
TEXTS = ["sourdough needs a warm place", "北京的冬天很冷"]
TITAN, COHERE_3, COHERE_4 = "amazon.titan-embed-text-v2:0", "cohere.embed-multilingual-v3", "us.cohere.embed-v4:0"

#: Provider -> its settings for the server's address.
APIS: dict[str, Callable[[str], dict[str, Any]]] = {
    "openai": lambda root: {"remote": {"base_url": f"{root}/v1"}},
    "voyage": lambda root: {"remote": {"base_url": f"{root}/v1"}},
    "gemini": lambda root: {"remote": {"base_url": root}},
    "ollama": lambda root: {"remote": {"base_url": root}},
    "bedrock": lambda root: {"remote": {"base_url": root}, "model": COHERE_3},
}

Connect = Callable[..., RemoteProvider]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Make providers that ask a server, or an address."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_BEARER_TOKEN_BEDROCK", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as opened:

        def build(name: str, server: EmbeddingServer | str, **settings: Any) -> RemoteProvider:
            usual = APIS[name](server if isinstance(server, str) else server.root)
            remote = {"api_key": KEY, **usual.pop("remote"), **settings.pop("remote", {})}
            tree = {"provider": name, "remote": remote, **usual, **settings}
            provider = choose_provider(MemorySettings.model_validate(tree), Credentials()).provider
            assert isinstance(provider, RemoteProvider)
            opened.callback(provider.close)
            return provider

        yield build


@pytest.fixture(params=APIS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(name: str) -> Iterator[EmbeddingServer]:
    with EmbeddingServer(api="voyage" if name == "voyage" else "openai") as running:
        yield running


def test_vectors_come_in_the_order_of_the_texts_with_the_tokens_that_were_counted(
    name: str, server: EmbeddingServer, connect: Connect
) -> None:
    provider = connect(name, server, query_prefix="", document_prefix="")
    got = provider.embed_documents(TEXTS)
    assert got.vectors.dtype == np.float32
    np.testing.assert_allclose(got.vectors, np.stack([embed(text, 64) for text in TEXTS]), atol=1e-7)
    assert got.tokens == (None if name == "openai" else 14)
    assert provider.embed_query("three").vectors.shape == (1, 64)
    provider.close()
    wait_until(lambda: server.connections == 0)
    assert provider.embed_query("a new connection").vectors.shape == (1, 64)


def test_what_no_request_can_carry_is_cleaned_cut_or_not_sent(
    name: str, server: EmbeddingServer, connect: Connect
) -> None:
    provider = connect(name, server, query_prefix="", document_prefix="")
    provider.embed_documents(["a\x00b \ud83d and 🚀"])
    provider.embed_query(" where does it rise? ")
    provider.embed_query("字" * 20_000)
    for empty in ("", "  "):
        with pytest.raises(Permanent, match="nothing to embed"):
            provider.embed_query(empty)
    odd, query, long = (request.inputs[0] for request in server.log)
    assert (odd, query) == ("a b \ufffd and 🚀", "where does it rise?")
    assert len(long.encode()) <= provider.limits.input_bytes


@pytest.mark.parametrize(
    ("name", "model", "width"), [("openai", "custom", "dimensions"), ("voyage", "voyage-4-nano", "output_dimension")]
)
def test_dimensions_input_types_model_and_headers_are_sent_when_set(
    server: EmbeddingServer, connect: Connect, name: str, model: str, width: str
) -> None:
    provider = connect(
        name,
        server,
        model=model,  # the voyageai SDK's own client would look for the nano model on this machine
        output_dimensionality=32,
        query_input_type="question",
        document_input_type="passage",
        remote={"headers": {"X-Team": "memory", "Authorization": "Bearer of-a-gateway"}},
    )
    assert provider.embed_documents(["one"]).vectors.shape == provider.embed_query("two").vectors.shape == (1, 32)
    document, query = server.log
    assert (document.body[width], document.body["input_type"], query.body["input_type"]) == (32, "passage", "question")
    assert query.body["model"] == model
    assert (query.headers["x-team"], query.headers["authorization"]) == ("memory", "Bearer of-a-gateway")


@pytest.mark.parametrize("name", ["openai", "voyage", "bedrock"])
def test_an_endpoint_that_ignores_the_dimensions_is_a_mistake_in_the_settings(
    server: EmbeddingServer, connect: Connect, name: str
) -> None:
    server.fail_next(Failure(dimensions=64))
    with pytest.raises(Unusable, match="output_dimensionality"):
        connect(name, server, output_dimensionality=32).embed_documents(["one"])


# Failures


def google(status: int, label: str, message: str = "no", *details: dict[str, Any]) -> Failure:
    return Failure(status=status, body={"error": {"message": message, "status": label, "details": list(details)}})


def aws(status: int, code: str, message: str = "oh") -> Failure:
    return Failure(status=status, message=message, headers={"x-amzn-ErrorType": code})


def quota(quota_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    kind = "type.googleapis.com/google.rpc."
    violations = {"@type": f"{kind}QuotaFailure", "violations": [{"quotaId": quota_id}]}
    return violations, {"@type": f"{kind}RetryInfo", "retryDelay": "34.5s"}


def field(path: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [{"field": path}]}


TOO_MANY = "The max allowed tokens per submitted batch is 120000. Your batch has 121138 tokens after truncation."
NO_CARD = "You have not yet added your payment method in the billing page and will have reduced rate limits of 3 RPM."
ON_DEMAND = f"Invocation of model ID {COHERE_3} with on-demand throughput isn't supported."
WAIT = {"Retry-After": "2"}

FAILURES: list[tuple[str, Failure, type[Exception], str]] = [
    ("openai", Failure(status=401), Terminal, "check OPENAI_API_KEY or remote.api_key"),
    ("openai", Failure(status=429, code="insufficient_quota"), Terminal, "top it up"),
    ("openai", Failure(status=404, code="model_not_found"), Terminal, "check model and remote.base_url"),
    ("openai", Failure(status=400, message="maximum context length is 8192 tokens"), TooLarge, "refused the text"),
    ("openai", Failure(status=400), Permanent, "refused the text"),
    ("openai", Failure(status=503, headers=WAIT), Throttled, "HTTP 503"),
    ("openai", Failure(drop=1), Transient, "1 vectors for 2 texts"),
    ("voyage", Failure(status=401), Terminal, "check VOYAGE_API_KEY or remote.api_key"),
    ("voyage", Failure(status=400, message="Model voyage-4-large is not supported."), Terminal, "check model"),
    ("voyage", Failure(status=400, message=TOO_MANY), TooLarge, "refused the text"),
    (
        "voyage",
        Failure(status=422, body={"detail": [{"loc": ["body", "output_dimension"], "msg": "no"}]}),
        Terminal,
        "refused the setting output_dimension",
    ),
    ("voyage", Failure(status=429, message=NO_CARD), Throttled, "added your payment method"),
    ("voyage", Failure(status=429, headers=WAIT, body="<html>slow</html>"), Throttled, "slow down"),
    ("gemini", google(400, "INVALID_ARGUMENT", "bad", {"reason": "API_KEY_INVALID"}), Terminal, "refused the key"),
    ("gemini", google(404, "NOT_FOUND", "models/x is not found for API version v1beta"), Terminal, "check model"),
    ("gemini", google(400, "INVALID_ARGUMENT", "bad", field("requests[0].task_type")), Terminal, "task_type"),
    ("gemini", google(400, "INVALID_ARGUMENT", "bad", field("requests[0].content")), Permanent, "the text"),
    ("gemini", google(400, "INVALID_ARGUMENT", "The input token count (3000) exceeds the limit"), TooLarge, "the text"),
    ("gemini", google(429, "RESOURCE_EXHAUSTED", "q", *quota("RequestsPerMinutePerProject")), Throttled, "slow"),
    ("gemini", google(429, "RESOURCE_EXHAUSTED", "q", *quota("RequestsPerDayPerProject")), Terminal, "day's"),
    ("gemini", google(503, "UNAVAILABLE", "The model is overloaded."), Transient, "passing"),
    ("gemini", Failure(wire="compressed"), Unusable, "compresses"),
    ("gemini", Failure(raw=b"[" * 100_000), Oversized, "JSON values"),
    ("gemini", Failure(raw=b" " * 3_000_000), Oversized, "bytes"),
    ("ollama", Failure(status=404, message="model 'x' not found"), Terminal, "ollama pull nomic-embed-text"),
    # Versions differ in the status of a text that is too long.
    ("ollama", Failure(status=400, message="the input length exceeds the context length"), TooLarge, "context"),
    ("ollama", Failure(status=500, message="the input length exceeds the context length"), TooLarge, "context"),
    ("bedrock", aws(429, "ThrottlingException", "Too many requests, please wait before trying again."), Throttled, ""),
    ("bedrock", aws(424, "ModelErrorException"), Transient, ""),
    ("bedrock", aws(403, "AccessDeniedException"), Terminal, "in the console the access to the model"),
    ("bedrock", aws(400, "ValidationException", "The provided model identifier is invalid."), Terminal, "check model"),
    ("bedrock", aws(400, "ValidationException", ON_DEMAND), Terminal, "check model"),
    ("bedrock", aws(400, "ValidationException", "Too many input tokens. Max input tokens: 8192"), TooLarge, ""),
    ("bedrock", aws(400, "ValidationException", "Malformed input request."), Permanent, ""),
    *((one, Failure(disconnect=True), Transient, f"connection to {one}") for one in APIS if one != "bedrock"),
]


@pytest.mark.parametrize(("name", "failure", "error", "words"), FAILURES)
def test_every_failure_has_its_class_says_what_to_do_and_is_not_repeated(
    server: EmbeddingServer, connect: Connect, name: str, failure: Failure, error: type[Exception], words: str
) -> None:
    server.fail_next(failure)
    with pytest.raises(error) as caught:
        connect(name, server).embed_documents(TEXTS)
    assert isinstance(caught.value, Transient) if error is Transient else type(caught.value) is error
    assert words in str(caught.value)
    assert server.requests == 1, "retries are the batcher's"
    if failure.headers == WAIT:
        assert caught.value.retry_after == 2  # type: ignore[attr-defined] # Throttled has it
    if "retryDelay" in str(failure.body) and error is Throttled:
        assert caught.value.retry_after == 34.5  # type: ignore[attr-defined] # the same


NONSENSE = [
    b"<html>welcome</html>",
    b"\xff\xfe",
    b"[]",
    b'{"detail": "no"}',
    b'{"data": [{"embedding": "!"}, {"embedding": 3}]}',
    b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}',
    b'{"data": [{"embedding": [1]}, {"embedding": [1, 2]}]}',
    b'{"embeddings": null}',
    b'{"embeddings": [3]}',
    b'{"embeddings": [{}, {}]}',
    b'{"embeddings": [[1.0], [2.0], [3.0]]}',
    b'{"embedding": "x"}',
]


def test_nonsense_instead_of_vectors_is_tried_again(name: str, server: EmbeddingServer, connect: Connect) -> None:
    provider = connect(name, server)
    for raw in NONSENSE:
        server.fail_next(Failure(raw=raw))
        with pytest.raises(Transient):
            provider.embed_documents(TEXTS)


def test_no_message_and_no_log_holds_a_key_or_a_text(
    name: str, server: EmbeddingServer, connect: Connect, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    if name == "bedrock":
        caplog.set_level(logging.INFO, "botocore")  # it logs whole requests
    provider = connect(name, server, remote={"headers": {"X-Api-Key": "another-secret"}})
    provider.embed_documents(["the text of a private note"])
    said = []
    for status in (307, 400, 401, 403, 404, 429, 500):
        server.fail_next(Failure(status=status, message=f"bad key {KEY} another-secret " + "x" * 5000))
        with pytest.raises((Permanent, Terminal, Transient)) as caught:
            provider.embed_documents(["the text of a private note"])
        assert len(str(caught.value)) < 600
        said.append(str(caught.value))
    shown = capsys.readouterr()
    for secret in (KEY, "another-secret", "private note"):
        assert secret not in "".join(said) + shown.out + shown.err + caplog.text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("openai", "connection to openai at {}/v1 failed"),
        ("ollama", "no Ollama answers at {}: start it with `ollama serve`"),
        ("bedrock", ""),
    ],
)
def test_a_server_that_is_not_there_is_a_passing_failure(connect: Connect, name: str, words: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Transient) as caught:
            connect(name, address).embed_query("one")
        assert words.format(address) in str(caught.value)


@pytest.mark.parametrize(("name", "package"), [("openai", "openai"), ("voyage", "voyageai"), ("bedrock", "boto3")])
def test_a_missing_sdk_is_named_with_its_command(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    provider = connect(name, "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Terminal, match=rf'pip install "recalld\[{name}\]"'):
        provider.embed_documents(["one"])


# OpenAI and compatible servers


@pytest.mark.parametrize("options", [{"floats": True}, {"refuses_base64": True}, {"shuffled": True}])
def test_endpoints_that_answer_in_their_own_way_work_too(connect: Connect, options: dict[str, bool]) -> None:
    with EmbeddingServer(**options) as server:
        provider = connect("openai", server)
        for _ in range(2):
            got = provider.embed_documents(TEXTS).vectors
            assert np.allclose(got, np.stack([embed(text, 64) for text in TEXTS]), atol=1e-7)
        assert server.requests <= 3, "what an endpoint does not take is not tried every time"


# Bedrock


@pytest.mark.parametrize("name", ["bedrock"])
def test_each_family_is_asked_in_its_own_form_with_the_machines_own_credentials(
    server: EmbeddingServer, connect: Connect, name: str
) -> None:
    titan = connect(name, server, model=TITAN, output_dimensionality=256)
    assert titan.limits.inputs == 1, "what came back of half a request would be paid for again"
    answer = titan.embed_query("one")
    assert (answer.vectors.shape, answer.tokens) == ((1, 256), 7)
    for model, input_bytes in ((COHERE_3, 2048), (COHERE_4, 8191)):
        limits = connect(name, server, model=model).limits
        assert (limits.inputs, limits.input_bytes) == (96, input_bytes)
    connect(name, server, model=COHERE_4, output_dimensionality=512).embed_documents(["two", "three"])
    server.fail_next(Failure(raw=b'{"embeddings": [[1.0, 2.0]], "id": "x"}'))
    assert connect(name, server).embed_query("four").vectors.shape == (1, 2), "older answers hold plain lists"
    first, second, _ = server.log
    assert (unquote(first.path), first.body) == (f"/model/{TITAN}/invoke", {"inputText": "one", "dimensions": 256})
    assert (second.body["truncate"], second.body["output_dimension"]) == ("NONE", 512)
    assert "Credential=AKIDEXAMPLE/" in first.headers["authorization"]
    assert "/eu-central-1/bedrock/" in first.headers["authorization"]


@pytest.mark.parametrize("lacking", [("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("AWS_DEFAULT_REGION",)])
def test_without_credentials_or_region_it_is_said_and_not_tried_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, lacking: tuple[str, ...]
) -> None:
    for variable in lacking:
        monkeypatch.delenv(variable)
    with pytest.raises(Terminal, match="aws configure"):
        connect("bedrock", "http://127.0.0.1:1").embed_query("one")


# The table of the documentation


PAGE = (Path(__file__).parents[2] / "docs" / "providers.md").read_text("utf-8")


@pytest.mark.long
def test_the_table_says_what_is_sent_now() -> None:
    assert document(PAGE) == PAGE, "run `python -m tests.provider_requests docs/providers.md`"


def test_every_service_that_has_a_name_is_in_the_table_with_its_documentation() -> None:
    assert {row.provider for row in ROWS} >= set(PRESETS)
    for row in ROWS:
        [line] = [line for line in PAGE.splitlines() if line.startswith(f"| `{row.provider}`{row.title} | ")]
        assert "[Documentation](https://" in line
