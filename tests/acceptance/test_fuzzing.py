"""Whatever is sent to the query service, it answers in its own words and goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.daemon import Daemon
from tests.waiting import wait_until

JSON = {"Content-Type": "application/json"}
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60)
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
FIELDS = [
    "query",
    "agent",
    "maxResults",
    "minScore",
    "sources",
    "sessionKey",
    "waitMs",
    "path",
    "from",
    "lines",
    "other",
]
BODIES = st.dictionaries(st.sampled_from(FIELDS), LEAVES | ANYTHING, max_size=5)
QUERIES = st.text(max_size=200) | st.lists(
    st.sampled_from(['"', "*", "AND", "NEAR(", ")", "col:", "^", "数据", "'", "\0", "-", "gateway", "+", "🦊"]),
    max_size=12,
).map(" ".join)
PATHS = st.text(max_size=60) | st.lists(
    st.sampled_from(["..", "/", "memory", "etc", "passwd", "\0", ".", "~", "%2e%2e", "note.md", "MEMORY.md", "\\"]),
    max_size=9,
).map("/".join)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("fuzzing")
    workspace = folder / "workspace"
    (workspace / "memory").mkdir(parents=True)
    (folder / "secret.md").write_text("nobody may read this: swordfish\n")
    with Daemon(folder / "home", workspace) as daemon:
        daemon.write("memory/note.md", "The gateway restarted. 数据库 is fine.\n")
        wait_until(lambda: daemon.found("gateway", "memory/note.md"))
        port = json.loads((Path(daemon.home) / "run" / "service.json").read_text())["port"]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client


slowly = settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.long
@slowly
@given(body=BODIES, path=st.sampled_from(["/v1/search", "/v1/get"]))
def test_any_body_gets_an_answer(service: httpx.Client, body: dict[str, object], path: str) -> None:
    answer = service.post(path, content=json.dumps(body), headers=JSON)
    assert answer.status_code in {200, 400, 401, 403, 404, 422}, answer.text
    assert "Traceback" not in answer.text


@pytest.mark.long
@slowly
@given(query=QUERIES)
def test_any_query_is_answered(service: httpx.Client, query: str) -> None:
    answer = service.post("/v1/search", content=json.dumps({"query": query}), headers=JSON)
    assert answer.status_code == 200, answer.text
    assert "unavailable" not in answer.json(), answer.text


@pytest.mark.long
@slowly
@given(path=PATHS)
def test_no_path_leads_out_of_the_memory(service: httpx.Client, path: str) -> None:
    answer = service.post("/v1/get", content=json.dumps({"path": path or "x"}), headers=JSON)
    assert answer.status_code in {200, 422}, answer.text
    assert "swordfish" not in answer.text
    assert "root:" not in answer.text


@pytest.mark.long
@slowly
@given(raw=st.binary(max_size=300))
def test_any_bytes_get_an_answer(service: httpx.Client, raw: bytes) -> None:
    answer = service.post("/v1/search", content=raw, headers=JSON)
    assert answer.status_code in {200, 400, 422}, answer.text
