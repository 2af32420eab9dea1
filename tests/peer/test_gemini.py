"""States of Gemini's batch jobs, and the task types of its requests."""

from __future__ import annotations

from typing import Any

import pytest

from memory.embedding.batch_jobs.batch_api import BatchApi, ProviderJob, batch_api_of
from memory.embedding.batch_jobs.batch_ledger import Stage
from memory.embedding.providers.endpoint import Endpoint
from memory.embedding.providers.json_apis import GeminiProvider
from memory.embedding.providers.provider import ProviderLimits
from tests.embedding_server import EmbeddingServer

LIMITS = ProviderLimits(inputs=100, tokens=20_000, input_bytes=2048, concurrency=1, chunks_per_second=100)
FILE = {"responsesFile": "files/results"}


def _provider(root: str) -> GeminiProvider:
    return GeminiProvider(
        Endpoint(
            name="gemini",
            model="gemini-embedding-001",
            base_url=root,
            api_key="a-key",
            key_name="GEMINI_API_KEY",
            limits=LIMITS,
            dimensions_field="outputDimensionality",
            query_input_type="RETRIEVAL_QUERY",
            document_input_type="RETRIEVAL_DOCUMENT",
        )
    )


def _asked(answers: Any, ask: Any) -> tuple[Any, list[Any]]:
    """What asking brings, and what was asked."""
    with EmbeddingServer(answers=answers) as server:
        provider = _provider(server.root)
        try:
            return ask(provider), server.log
        finally:
            provider.close()


def _looked(operation: dict[str, Any]) -> ProviderJob:
    progress, log = _asked(lambda path, body: operation, lambda provider: batch_api_of(provider).look("batches/b"))
    assert [(entry.method, entry.path) for entry in log] == [("GET", "/v1beta/batches/b")]
    assert isinstance(progress, ProviderJob)
    return progress


def _job(named: str, /, **more: Any) -> dict[str, Any]:
    return {"name": "batches/b", "metadata": {"state": named}, **more}


@pytest.mark.parametrize(
    ("operation", "state"),
    [
        (_job("BATCH_STATE_PENDING", done=False), Stage.RUNNING),
        (_job("BATCH_STATE_SUCCEEDED", done=True, response=FILE), Stage.DONE),
        (_job("BATCH_STATE_FAILED", done=True), Stage.FAILED),
        (_job("JOB_STATE_CANCELLED", done=True), Stage.CANCELLED),
        (_job("BATCH_STATE_EXPIRED", done=True), Stage.EXPIRED),
        # The operation's end counts, its metadata may lag behind.
        (_job("BATCH_STATE_RUNNING", done=True, response=FILE), Stage.DONE),
        (_job("BATCH_STATE_RUNNING", done=True, error={"code": 13, "message": "it broke"}), Stage.FAILED),
        (_job("BATCH_STATE_SUCCEEDED", done=True, error={"code": 13, "message": "it broke"}), Stage.FAILED),
        (_job("BATCH_STATE_RUNNING", done=True, state="BATCH_STATE_SUCCEEDED", output=FILE), Stage.DONE),
    ],
)
def test_a_job_is_in_the_state_that_the_provider_says(operation: dict[str, Any], state: Stage) -> None:
    progress = _looked(operation)
    assert progress.stage is state
    assert progress.message == ("it broke" if "error" in operation else "")


def test_counts_come_as_texts() -> None:
    stats = {"requestCount": "9", "successfulRequestCount": "5", "failedRequestCount": "1", "pendingRequestCount": "3"}
    progress = _looked({"name": "batches/b", "metadata": {"state": "BATCH_STATE_RUNNING", "batchStats": stats}})
    assert (progress.total, progress.completed, progress.failed) == (9, 5, 1)


@pytest.mark.parametrize(
    ("facts", "file"),
    [
        ({"response": FILE}, "results"),
        ({"metadata": {"state": "BATCH_STATE_SUCCEEDED", "output": FILE}}, "results"),
        ({"output": {"responsesFile": "files/first"}, "response": FILE}, "first"),
        ({}, None),
    ],
)
def test_results_are_downloaded_from_the_file_that_the_job_names(facts: dict[str, Any], file: str | None) -> None:
    def answered(path: str, body: Any) -> Any:
        line = {"key": "a", "response": {"embedding": {"values": [1.0, 0.0]}}}
        return line if "download" in path else {**_job("BATCH_STATE_SUCCEEDED", done=True), **facts}

    def ask(provider: GeminiProvider) -> list[str]:
        api: BatchApi = batch_api_of(provider)
        return [line.custom_id for line in api.results("batches/b", texts=1)]

    found, log = _asked(answered, ask)
    expected = [f"/download/v1beta/files/{file}:download?alt=media"] if file else []
    assert [entry.path for entry in log[1:]] == expected
    assert found == (["a"] if file else [])
