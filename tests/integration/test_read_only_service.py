"""The query service beside indexes and caches that it must leave as they are."""

from __future__ import annotations

import hashlib
from pathlib import Path

import apsw
import pytest

from memory.embedding.batch_jobs.ledger_reader import ledger_path
from schemas.settings import Settings
from tests.embedding_server import EmbeddingServer
from tests.serving import running, search
from tests.storing import ledger_at
from tests.waiting import wait_until
from tests.working import Workers, asking
from tests.written_index import with_agent

LINE = "- The vault stands in room seven <!-- trigger: release the server, production deploy -->"

#: Route -> body of a POST, parameters of a GET.
REQUESTS = {
    "/v1/days": {"since": "2026-01-01"},
    "/v1/turns": {"path": "MEMORY.md"},
    "/v1/search": {"query": "release the server"},
    "/v1/get": {"path": "MEMORY.md"},
    "/v1/tools": {"name": "memory_search", "arguments": {"query": "vault"}},
    "/v1/terms": {"query": "vault"},
    "/v1/context/prompt": {"prompt": "server release deploy production the vault stands in room"},
    "/v1/context/flush": {"windowTokens": 1_000, "tokens": 900},
    "/v1/context/prune": {"messages": []},
    "/v1/status": {"deep": True},
    "/v1/session": {"link": "none"},
}


def files_of(home: Path) -> dict[str, str]:
    """Return the digests of the files of indexes and caches, without SQLite's shared memory."""
    files = [path for folder in ("cache", "indexes") for path in (home / folder).rglob("*") if path.is_file()]
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if not path.name.endswith("-shm")
    }


@pytest.mark.usefixtures("broker_server")
@pytest.mark.parametrize("state", ["sound", "damaged", "locked", "newer"])
def test_no_route_changes_an_index_or_a_cache_or_waits_for_its_lock(
    settings: Settings, server: EmbeddingServer, state: str
) -> None:
    context = {"injection": {"enabled": True, "timeout_ms": 10_000, "min_score": 1.0}}
    settings = with_agent(asking(settings, server.url), context=context)
    cache, ledger = settings.home / "cache" / "embeddings.sqlite", ledger_path(settings.home)
    with Workers(settings) as workers:
        workers.index("MEMORY.md", f"# Memory\n\nMany other words are here, too.\n\n{LINE}\n")
    ledger_at(ledger).__exit__()
    writers = []
    for path in (cache, ledger):
        if state == "damaged":
            path.write_bytes(b"no database at all" * 1_000)
            continue
        writers.append(writer := apsw.Connection(str(path)))
        if state == "locked":
            writer.pragma("locking_mode", "exclusive")
            writer.execute("BEGIN IMMEDIATE; CREATE TABLE held (a); COMMIT; BEGIN EXCLUSIVE")
        elif state == "newer":
            writer.pragma("user_version", 99)
        elif path == cache:
            writer.execute("UPDATE embeddings SET used = 1")
    with running(settings) as client:
        wait_until(lambda: search(client, "weather")["mode"] == "hybrid")
        before = files_of(settings.home)
        for route, operations in client.get("/openapi.json").json()["paths"].items():
            for method in operations:
                body = REQUESTS.get(route, {})
                sent = {"json": body} if method == "post" else {"params": body}
                # An unknown link opens no session.
                assert client.request(method, route, **sent).status_code in {200, 503, 401}, route
        near = client.post("/v1/context/prompt", json=REQUESTS["/v1/context/prompt"]).json()
        cached = client.get("/v1/status").json()["cache"].get("entries", 0)
    assert files_of(settings.home) == before
    by_meaning = "MEMORY.md#L5-L5" in [block["source"] for block in near["blocks"]]
    assert (by_meaning, cached > 0) == ((True, True) if state == "sound" else (False, False))
    for writer in writers:
        writer.close()
