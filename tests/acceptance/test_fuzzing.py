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


#: What is sent -> JSON or bytes, the doors, the codes of an answer.
SENT: dict[str, tuple[st.SearchStrategy[object], list[str], set[int]]] = {
    "any body": (BODIES, ["/v1/search", "/v1/get"], {200, 400, 401, 403, 404, 422}),
    "any query": (QUERIES.map(lambda query: {"query": query}), ["/v1/search"], {200}),
    "any path": (PATHS.map(lambda path: {"path": path or "x"}), ["/v1/get"], {200, 422}),
    "any bytes": (st.binary(max_size=300), ["/v1/search"], {200, 400, 422}),
}


@pytest.mark.long
@pytest.mark.parametrize("sent", SENT)
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_sent_is_answered_and_leads_nowhere(service: httpx.Client, sent: str, data: st.DataObject) -> None:
    bodies, doors, codes = SENT[sent]
    body = data.draw(bodies)
    content = body if isinstance(body, bytes) else json.dumps(body)
    answer = service.post(data.draw(st.sampled_from(doors)), content=content, headers=JSON)
    assert answer.status_code in codes, answer.text
    assert sent != "any query" or "unavailable" not in answer.json()
    for word in ("Traceback", "swordfish", "root:"):
        assert word not in answer.text
