"""The Batch APIs of OpenAI, Voyage and Gemini, spoken to a server over HTTP."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from memory.embedding.batch_jobs import batch_api
from memory.embedding.batch_jobs.batch_api import BatchApi, BatchUnavailable, batch_api_of
from memory.embedding.batch_jobs.batch_ledger import Stage
from memory.embedding.providers.provider import EmbeddingProvider, ProviderLimits
from memory.embedding.selection import choose_provider
from schemas.errors import Terminal, Throttled, Transient
from schemas.settings import Credentials, MemorySettings
from tests.batch_server import BatchServer, GeminiServer, JobScript
from tests.embedding_server import embed
from tests.raw_server import answer, raw_server

LIMITS = ProviderLimits(inputs=100, tokens=10_000, input_bytes=8000, concurrency=2, chunks_per_second=100)
TEXTS = [(f"id-{number}", f"The heron number {number}.") for number in range(12)]


@pytest.fixture(params=["openai", "voyage", "gemini"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(name: str) -> Iterator[BatchServer]:
    with GeminiServer() if name == "gemini" else BatchServer() as running:
        yield running


def _provider(name: str, server: BatchServer) -> EmbeddingProvider:
    own = {"openai": {"model": "a-model"}, "voyage": {"model": "voyage-4"}, "gemini": {}}.get(name, {})
    dimensions = {"output_dimensionality": 32} if name in {"voyage", "gemini"} else {}
    settings = {"provider": name, "remote": {"base_url": server.url, "api_key": "a-key"}, **own, **dimensions}
    provider = choose_provider(MemorySettings.model_validate(settings), Credentials()).provider
    assert provider is not None
    return provider


@pytest.fixture
def api(name: str, server: BatchServer) -> Iterator[BatchApi]:
    provider = _provider(name, server)
    found = batch_api_of(provider)
    assert found is not None
    yield found
    provider.close()


def _submitted(api: BatchApi, reference: str = "ours") -> str:
    file = api.write(TEXTS)
    with file.content:
        assert file.ids == tuple(custom_id for custom_id, _ in TEXTS)
        return api.submit(file, reference=reference)


def _ended(api: BatchApi, job_id: str) -> Stage:
    for _ in range(10):
        progress = api.look(job_id)
        if progress.stage is not Stage.RUNNING:
            return progress.stage
    raise AssertionError("it runs and runs")


def test_a_job_brings_every_text_its_vector_and_its_files_are_deleted(api: BatchApi, server: BatchServer) -> None:
    job_id = _submitted(api)
    assert api.look(job_id).total == len(TEXTS)
    assert _ended(api, job_id) is Stage.DONE
    lines = {line.custom_id: line for line in api.results(job_id, texts=len(TEXTS))}
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


def test_a_line_counts_once_and_its_vector_has_the_place_of_its_one_text(api: BatchApi, server: BatchServer) -> None:
    job_id, output = _finished(api, server)
    lines = [
        _line(server, "a", "one"),
        _line(server, "a", "two"),
        _line(server, "b", "three", index=False),
        _line(server, "c", "four", index=1),
    ]
    server.files[output] = b"\n".join(
        [*lines, _line(server, 7, "five"), _line(server, True, "six"), _line(server, "d", "seven")]
    )
    found = list(api.results(job_id, texts=len(TEXTS)))
    assert [line.custom_id for line in found] == ["a", "d"]
    np.testing.assert_allclose(found[0].vector, embed("one", 32), rtol=1e-6)  # type: ignore[arg-type] # not None


@pytest.mark.parametrize("content", [b" " * 3_000_000, b"\n" * 3_000_000])
def test_results_are_no_longer_than_the_job_s_texts_allow(api: BatchApi, server: BatchServer, content: bytes) -> None:
    job_id, output = _finished(api, server)
    server.files[output] = content
    with pytest.raises(Transient):
        list(api.results(job_id, texts=1))


def test_results_that_lie_elsewhere_are_fetched_without_key_or_header(api: BatchApi, server: BatchServer) -> None:
    job_id, output = _finished(api, server)
    with raw_server([answer(_line(server, "a", "one"))]) as elsewhere:
        server.fail("GET", f"/files/{output}/content", 302, Location=f"{elsewhere.url}/signed?x=y")
        assert [line.custom_id for line in api.results(job_id, texts=len(TEXTS))] == ["a"]
    [request] = elsewhere.requests
    assert request.startswith(b"GET /signed?x=y HTTP/1.1\r\n")
    assert b"a-key" not in request
    assert b"authorization" not in request.lower()
    assert b"x-goog" not in request.lower()


def test_no_other_call_goes_elsewhere(api: BatchApi, server: BatchServer) -> None:
    job_id, _ = _finished(api, server)
    with raw_server([answer(b"{}")]) as elsewhere:
        server.fail("GET", f"/batches/{job_id}", 302, Location=elsewhere.url)
        server.fail("POST", "/files", 307, Location=elsewhere.url)
        with pytest.raises(Terminal):
            api.look(job_id)
        with pytest.raises(Terminal):
            _submitted(api)
    assert elsewhere.connections == []


def test_lines_that_failed_say_why_and_those_that_nobody_can_read_are_left_out(
    api: BatchApi, server: BatchServer
) -> None:
    server.script(JobScript(fails="number 3.", drops=1, garbage=4))
    job_id = _submitted(api)
    assert _ended(api, job_id) is Stage.DONE
    lines = {line.custom_id: line for line in api.results(job_id, texts=len(TEXTS))}
    assert lines["id-3"].vector is None
    assert lines["id-3"].reason == "this text is not welcome"
    assert sorted(set(dict(TEXTS)) - set(lines)) == ["id-0"]
    assert sum(line.vector is not None for line in lines.values()) == len(TEXTS) - 2


@pytest.mark.parametrize(("ends", "state"), [("failed", Stage.FAILED), ("expired", Stage.EXPIRED)])
def test_a_job_may_end_badly_and_keeps_what_was_done(
    api: BatchApi, server: BatchServer, ends: str, state: Stage
) -> None:
    server.script(JobScript(ends=ends, done=4))
    job_id = _submitted(api)
    assert _ended(api, job_id) is state
    assert len(list(api.results(job_id, texts=len(TEXTS)))) == 4
    assert api.look(job_id).message == ("the job went wrong" if ends == "failed" else "")


def test_a_job_is_found_by_our_reference_among_many(
    api: BatchApi, server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_api, "_PAGE", 2)
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
    api.cancel(job_id)
    assert _ended(api, job_id) is Stage.CANCELLED
    assert len(list(api.results(job_id, texts=len(TEXTS)))) == 3
    api.cancel(job_id)
    assert api.look(job_id).stage is Stage.CANCELLED
    api.cancel("batch-of-another-account")
    assert api.look("batch-of-another-account").stage is Stage.FAILED
    assert list(api.results("batch-of-another-account", texts=1)) == []
    api.clean_up("batch-of-another-account")


@pytest.mark.parametrize("status", [500, None])
def test_a_job_whose_answer_was_lost_is_found(api: BatchApi, server: BatchServer, status: int | None) -> None:
    server.fail("POST", "/batches", status, afterwards=True)
    with pytest.raises(Transient):
        _submitted(api)
    assert list(server.jobs) == [api.find("ours")]


def test_a_provider_may_ask_for_a_pause(api: BatchApi, server: BatchServer) -> None:
    server.fail("POST", "/batches", 429, Retry_After="60")
    with pytest.raises(Throttled) as caught:
        _submitted(api)
    assert caught.value.retry_after == 60
    assert server.calls["POST batches"] == 1
    assert not server.files, "the file of a job that is not there"


def test_a_refused_key_and_a_missing_endpoint_are_told_apart(api: BatchApi, server: BatchServer) -> None:
    server.fail("POST", "/files", 401)
    with pytest.raises(Terminal):
        _submitted(api)
    server.batches = False
    with pytest.raises(BatchUnavailable, match="HTTP 404"):
        _submitted(api)
    with pytest.raises(BatchUnavailable):
        api.find("ours")


def test_a_file_holds_what_the_limits_allow(api: BatchApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(api), "most_texts", 5)
    file = api.write(TEXTS)
    file.content.close()
    assert len(file.ids) == 5
    monkeypatch.setattr(type(api), "most_texts", 100)
    monkeypatch.setattr(type(api), "most_bytes", 600)
    file = api.write(TEXTS)
    with file.content:
        assert 0 < len(file.ids) < 12
        file.content.seek(0)
        assert len(file.content.read()) <= 600


def test_presets_without_a_batch_api_that_we_speak_have_none() -> None:
    with BatchServer() as server:
        for name in ("mistral", "ollama"):
            provider = _provider(name, server)
            assert batch_api_of(provider) is None
            provider.close()
