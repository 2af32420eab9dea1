"""Amazon Bedrock through the real boto3, against a local stand-in that answers as AWS documents it."""

from __future__ import annotations

import http.server
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.selection import choose_provider
from schemas.errors import Permanent, RecalldError, Terminal, Throttled, TooLarge, Transient
from schemas.settings import Credentials, MemorySettings
from tests.provider_requests import AWS
from tests.stub_server import StubServer

TITAN, COHERE_3, COHERE_4 = "amazon.titan-embed-text-v2:0", "cohere.embed-multilingual-v3", "us.cohere.embed-v4:0"
CHECKOUT = Path(__file__).parents[2]

Answer = tuple[int, dict[str, str], Any]


class Bedrock(StubServer):
    """A server for `POST /model/ID/invoke`; `answers` are given first, then good ones of `width` dimensions."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.authorizations: list[str] = []

    @property
    def url(self) -> str:
        return self.root

    def _serve(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        self.asked.append((unquote(handler.path), body))
        self.authorizations.append(handler.headers["authorization"])
        status, headers, answer = self.answers.pop(0) if self.answers else self.good(body)
        payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(payload))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(payload)

    def good(self, body: dict[str, Any]) -> Answer:
        width = body.get("dimensions") or body.get("output_dimension") or self.width
        headers = {"X-Amzn-Bedrock-Input-Token-Count": "5"}
        if "inputText" in body:
            return 200, headers, {"embedding": [1.0] * width, "inputTextTokenCount": 5}
        rows = [[float(place + 1)] * width for place in range(len(body["texts"]))]
        return 200, headers, {"embeddings": {"float": rows}, "response_type": "embeddings_by_type"}

    def refuse(self, status: int, code: str, message: str, **headers: str) -> None:
        told = {"x-amzn-ErrorType": code, "Content-Type": "application/json"}
        self.answers.append(
            (status, {**told, **{name.replace("_", "-"): headers[name] for name in headers}}, {"message": message})
        )


@pytest.fixture
def bedrock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bedrock]:
    """The stand-in, and credentials and region that are nobody's."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_BEARER_TOKEN_BEDROCK", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    with Bedrock() as running:
        yield running


Connect = Callable[..., EmbeddingProvider]


@pytest.fixture
def connect(bedrock: Bedrock) -> Iterator[Connect]:
    made: list[EmbeddingProvider] = []

    def make(model: str = TITAN, **settings: Any) -> EmbeddingProvider:
        tree = {"provider": "bedrock", "model": model, "remote": {"base_url": bedrock.url}, **settings}
        provider = choose_provider(MemorySettings.model_validate(tree), Credentials()).provider
        assert provider is not None
        made.append(provider)
        return provider

    yield make
    for provider in made:
        provider.close()


def test_titan_is_asked_for_one_text_at_a_time_with_the_machines_own_credentials(
    bedrock: Bedrock, connect: Connect
) -> None:
    provider = connect()
    assert provider.limits.inputs == 1, "what came back of half a request would be paid for again"
    answer = provider.embed_documents(["one"])
    assert (answer.vectors.shape, answer.tokens) == ((1, 8), 5)
    connect(output_dimensionality=256).embed_query("two")
    path = f"/model/{TITAN}/invoke"
    assert bedrock.asked == [(path, {"inputText": "one"}), (path, {"inputText": "two", "dimensions": 256})]
    assert "Credential=AKIDEXAMPLE/" in bedrock.authorizations[0]
    assert "/eu-central-1/bedrock/" in bedrock.authorizations[0]


@pytest.mark.parametrize(
    ("model", "width", "input_bytes"), [(COHERE_3, {}, 2048), (COHERE_4, {"output_dimension": 512}, 8191)]
)
def test_cohere_is_told_queries_from_documents_and_to_cut_nothing(
    bedrock: Bedrock, connect: Connect, model: str, width: dict[str, int], input_bytes: int
) -> None:
    provider = connect(model, **({"output_dimensionality": 512} if width else {}))
    assert (provider.limits.inputs, provider.limits.input_bytes) == (96, input_bytes)
    vectors = provider.embed_documents(["one", "two"]).vectors
    assert np.allclose(vectors[:, 0], [1.0, 2.0])
    provider.embed_query("three")
    (path, document), (_, query) = bedrock.asked
    assert path == f"/model/{model}/invoke"
    shared = {"truncate": "NONE", "embedding_types": ["float"], **width}
    assert document == {"texts": ["one", "two"], "input_type": "search_document", **shared}
    assert query == {"texts": ["three"], "input_type": "search_query", **shared}


def test_older_answers_of_cohere_hold_plain_lists(bedrock: Bedrock, connect: Connect) -> None:
    bedrock.answers.append((200, {}, {"embeddings": [[1.0, 2.0]], "id": "x"}))
    assert connect(COHERE_3).embed_query("one").vectors.shape == (1, 2)


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (429, "ThrottlingException", "Too many requests, please wait before trying again.", Throttled),
        (503, "ServiceUnavailableException", "try again", Transient),
        (408, "ModelTimeoutException", "it took too long", Transient),
        (424, "ModelErrorException", "the model failed", Transient),
        (500, "InternalServerException", "oh", Transient),
        (403, "AccessDeniedException", "You don't have access to the model with the specified model ID.", Terminal),
        (403, "UnrecognizedClientException", "The security token included in the request is invalid.", Terminal),
        (404, "ResourceNotFoundException", "no such model", Terminal),
        (400, "ValidationException", "The provided model identifier is invalid.", Terminal),
        (
            400,
            "ValidationException",
            f"Invocation of model ID {TITAN} with on-demand throughput isn't supported.",
            Terminal,
        ),
        (400, "ValidationException", "400 Bad Request: Too many input tokens. Max input tokens: 8192", TooLarge),
        (400, "ValidationException", "Malformed input request: expected maxLength: 2048, actual: 2513", TooLarge),
        (400, "ValidationException", "Malformed input request, please reformat your input.", Permanent),
    ],
)
def test_what_aws_refuses_is_waited_for_refused_or_ends_it(
    bedrock: Bedrock, connect: Connect, status: int, code: str, message: str, kind: type[RecalldError]
) -> None:
    bedrock.refuse(status, code, message)
    with pytest.raises(RecalldError) as caught:
        connect().embed_documents(["one"])
    assert type(caught.value) is kind
    assert len(bedrock.asked) == 1, "the batcher alone tries again"


def test_a_wait_that_aws_names_is_kept(bedrock: Bedrock, connect: Connect) -> None:
    bedrock.refuse(429, "ThrottlingException", "slow down", Retry_After="7")
    with pytest.raises(Throttled) as caught:
        connect().embed_documents(["one"])
    assert caught.value.retry_after == 7.0


@pytest.mark.parametrize(
    "answer", [b"<html>", {"embeddings": None}, {"embedding": "x"}, [], {"embeddings": [[1.0]] * 3}]
)
def test_nonsense_instead_of_vectors_is_tried_again(bedrock: Bedrock, connect: Connect, answer: Any) -> None:
    bedrock.answers.append((200, {}, answer))
    with pytest.raises(Transient):
        connect().embed_documents(["one"])


def test_a_width_that_the_model_does_not_have_is_a_mistake_in_the_settings(connect: Connect) -> None:
    with pytest.raises(Terminal, match="output_dimensionality"):
        connect(COHERE_3, output_dimensionality=512).embed_query("one")


@pytest.mark.parametrize("lacking", [("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("AWS_DEFAULT_REGION",)])
def test_without_credentials_or_region_it_is_said_and_not_tried_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, lacking: tuple[str, ...]
) -> None:
    for name in lacking:
        monkeypatch.delenv(name)
    with pytest.raises(Terminal, match="aws configure"):
        connect().embed_query("one")


def test_an_endpoint_that_is_not_there_is_tried_again(connect: Connect) -> None:
    with pytest.raises(Transient):
        connect(remote={"base_url": "http://127.0.0.1:1"}).embed_query("one")


def test_the_identity_names_neither_account_nor_region(connect: Connect) -> None:
    provider = choose_provider(MemorySettings.model_validate({"provider": "bedrock"}), Credentials()).provider
    assert provider is not None
    facts = {"base_url": "https://bedrock-runtime.amazonaws.com", "model": TITAN, "provider": "bedrock"}
    assert json.loads(provider.identity) == facts
    cohere = json.loads(connect(COHERE_4).identity)
    assert (cohere["query_input_type"], cohere["document_input_type"]) == ("search_query", "search_document")
