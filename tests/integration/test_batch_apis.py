"""The Batch APIs of OpenAI, Voyage and Gemini, spoken to a server over HTTP."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from memory.embedding.batch_jobs.batch_api import BatchApi, BatchLine, BatchUnavailable, ProviderJob, batch_api_of
from memory.embedding.batch_jobs.batch_ledger import Stage
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.selection import choose_provider
from schemas.errors import Throttled
from schemas.settings import Credentials, MemorySettings
from tests.batch_server import BatchServer, GeminiServer, JobScript
from tests.embedding_server import EmbeddingServer, embed
from tests.raw_server import answer, raw_server

TEXTS = [(f"id-{number}", f"The heron number {number}.") for number in range(12)]


@pytest.fixture(params=["openai", "voyage", "gemini"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(name: str) -> Iterator[BatchServer]:
    with GeminiServer() if name == "gemini" else BatchServer() as running:
        yield running


def _provider(name: str, url: str) -> EmbeddingProvider:
    own = {"openai": {"model": "a-model"}, "voyage": {"model": "voyage-4"}, "gemini": {}}.get(name, {})
    dimensions = {"output_dimensionality": 32} if name in {"voyage", "gemini"} else {}
    settings = {"provider": name, "remote": {"base_url": url, "api_key": "a-key"}, **own, **dimensions}
    provider = choose_provider(MemorySettings.model_validate(settings), Credentials()).provider
    assert provider is not None
    return provider


@pytest.fixture
def api(name: str, server: BatchServer) -> Iterator[BatchApi]:
    provider = _provider(name, server.url)
    found = batch_api_of(provider)
    assert found is not None
    yield found
    provider.close()


def _submitted(api: BatchApi, reference: str = "ours") -> str:
    file = api.write(TEXTS)
    with file.content:
        assert file.ids == tuple(custom_id for custom_id, _ in TEXTS)
        return api.submit(file, reference=reference)


def _look(api: BatchApi, job_id: str) -> ProviderJob:
    job = api.look(job_id)
    assert job is not None
    return job


def _results(api: BatchApi, job_id: str) -> list[BatchLine]:
    return list(api.results(_look(api, job_id), texts=len(TEXTS)))


def _ended(api: BatchApi, job_id: str) -> Stage:
    for _ in range(10):
        job = _look(api, job_id)
        if job.stage is not Stage.RUNNING:
            return job.stage
    raise AssertionError("it runs and runs")


def test_a_job_brings_every_text_its_vector_and_its_files_are_deleted(api: BatchApi, server: BatchServer) -> None:
    job_id = _submitted(api)
    assert _ended(api, job_id) is Stage.DONE
    lines = {line.custom_id: line for line in _results(api, job_id)}
    assert lines.keys() == dict(TEXTS).keys()
    for custom_id, text in TEXTS:
        vector = lines[custom_id].vector
        assert vector is not None
        np.testing.assert_allclose(vector, embed(text, 32), rtol=1e-6)
        assert lines[custom_id].tokens == 7
    assert server.paid == Counter(text for _, text in TEXTS)
    assert len(server.files) == 2
    api.clean_up(job_id)
    assert not server.files


def test_a_file_takes_texts_up_to_the_limits_of_its_api(api: BatchApi) -> None:
    with api.write(TEXTS[:3]).content as three:
        size = three.tell()
    for limit in ({"most_texts": 3}, {"most_bytes": size}):
        smaller = type("Smaller", (type(api),), limit)(api.provider)
        file = smaller.write(TEXTS)
        with file.content:
            assert file.ids == tuple(custom_id for custom_id, _ in TEXTS[:3])


def _finished(api: BatchApi, server: BatchServer) -> tuple[str, str]:
    """The ids of a job that is done, and of its file of results."""
    job_id = _submitted(api)
    assert _ended(api, job_id) is Stage.DONE
    output = server.jobs[job_id].output
    assert output is not None
    return job_id, output


def _line(server: BatchServer, custom_id: object, text: str, index: object = 0) -> bytes:
    if isinstance(server, GeminiServer):
        values = embed(text, 32).tolist() if type(index) is int and index == 0 else "none"
        return json.dumps({"key": custom_id, "response": {"embedding": {"values": values}}}).encode()
    entry = {"index": index, "embedding": embed(text, 32).tolist()}
    response = {"status_code": 200, "body": {"data": [entry]}}
    return json.dumps({"custom_id": custom_id, "response": response}).encode()


def test_results_that_lie_elsewhere_are_fetched_without_key_or_header(api: BatchApi, server: BatchServer) -> None:
    job_id, output = _finished(api, server)
    with raw_server([answer(_line(server, "a", "one"))]) as elsewhere:
        server.fail("GET", f"/files/{output}/content", 302, Location=f"{elsewhere.url}/signed?x=y")
        assert [line.custom_id for line in _results(api, job_id)] == ["a"]
    [request] = elsewhere.requests
    assert request.startswith(b"GET /signed?x=y HTTP/1.1\r\n")
    assert b"a-key" not in request
    assert b"authorization" not in request.lower()
    assert b"x-goog" not in request.lower()


@pytest.mark.parametrize(("ends", "state"), [("failed", Stage.FAILED), ("expired", Stage.EXPIRED)])
def test_a_job_may_end_badly_and_keeps_what_was_done(
    api: BatchApi, server: BatchServer, ends: str, state: Stage
) -> None:
    server.script(JobScript(ends=ends, done=4))
    job_id = _submitted(api)
    assert _ended(api, job_id) is state
    assert len(_results(api, job_id)) == 4
    assert _look(api, job_id).message == ("the job went wrong" if ends == "failed" else "")


def test_a_job_is_found_by_our_reference_on_any_page(api: BatchApi, server: BatchServer) -> None:
    server.most_listed = 2
    ids = [_submitted(api, reference=f"job {number}") for number in range(5)]
    assert api.find("job 0") == ids[0]
    assert api.find("job 4") == ids[4]
    assert api.find("job 9") is None


def test_a_cancelled_job_keeps_what_was_done_and_one_that_is_over_stays_as_it_is(
    api: BatchApi, server: BatchServer
) -> None:
    server.open.clear()
    server.script(JobScript(done=3))
    job_id = _submitted(api)
    api.look(job_id)
    assert api.cancel(job_id)
    assert _ended(api, job_id) is Stage.CANCELLED
    assert len(_results(api, job_id)) == 3
    assert not api.cancel(job_id)
    assert _look(api, job_id).stage is Stage.CANCELLED
    assert not api.cancel("batch-of-another-account")
    assert api.look("batch-of-another-account") is None
    api.clean_up("batch-of-another-account")


@pytest.mark.parametrize("status", [404, 405])
def test_a_job_without_an_address_is_looked_for_in_the_list(api: BatchApi, server: BatchServer, status: int) -> None:
    job_id = _submitted(api)
    server.fail("GET", f"/batches/{job_id}", status)
    assert _look(api, job_id).id == job_id
    assert server.calls["GET batches"] == 2
    server.jobs[job_id].lost = True
    assert api.look(job_id) is None
    assert not api.cancel(job_id)
    assert api.find("ours") is None
    # Without a list, or while it is away as well, there is no more to know.
    server.jobs[job_id].lost = False
    server.fail("GET", f"/batches/{job_id}", status)
    server.fail("GET", "/batches", status)
    assert api.look(job_id) is None


def test_results_that_are_away_for_a_moment_are_had_later(api: BatchApi, server: BatchServer) -> None:
    job_id, output = _finished(api, server)
    server.fail("GET", f"/files/{output}/content", 404)
    with pytest.raises(BatchUnavailable):
        _results(api, job_id)
    assert len(_results(api, job_id)) == len(TEXTS)


def test_a_state_that_is_not_known_is_named_and_counts_as_running(api: BatchApi, server: BatchServer) -> None:
    server.script(JobScript(says="held  for\nreview " * 10))
    server.open.clear()
    job_id = _submitted(api)
    _look(api, job_id)
    job = _look(api, job_id)
    assert (job.stage, len(job.unknown_state)) == (Stage.RUNNING, 40)
    assert job.unknown_state.startswith("held for review ")


@pytest.mark.parametrize("state", ["queued", "pending", "validating", "in_progress", "finalizing", "cancelling"])
def test_the_states_of_a_running_job_are_known(api: BatchApi, server: BatchServer, state: str) -> None:
    server.script(JobScript(says=state))
    server.open.clear()
    job_id = _submitted(api)
    for _ in range(2):
        job = _look(api, job_id)
        assert (job.stage, job.unknown_state) == (Stage.RUNNING, "")


def test_a_provider_may_ask_for_a_pause(api: BatchApi, server: BatchServer) -> None:
    server.fail("POST", "/batches", 429, Retry_After="60")
    with pytest.raises(Throttled) as caught:
        _submitted(api)
    assert caught.value.retry_after == 60
    assert server.calls["POST batches"] == 1
    assert not server.files, "the file of a job that is not there"


# States of Gemini's jobs


FILE = {"responsesFile": "files/results"}


def _looked(operation: dict[str, Any]) -> ProviderJob:
    with EmbeddingServer(answers=lambda path, body: operation) as server:
        provider = _provider("gemini", f"{server.root}/v1beta")
        api = batch_api_of(provider)
        assert api is not None
        job = _look(api, "batches/b")
        provider.close()
    assert [(entry.method, entry.path) for entry in server.log] == [("GET", "/v1beta/batches/b")]
    return job


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
