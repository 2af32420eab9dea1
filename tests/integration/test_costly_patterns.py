"""A redaction pattern that never ends costs one document, or one question, and nothing that it hides is shown."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from schemas.settings import Settings
from tests.daemon import files_with
from tests.embedding_server import EmbeddingServer
from tests.serving import running, search
from tests.waiting import wait_until
from tests.working import Workers, asking
from tests.written_index import with_agent, write_index

ENDLESS = "(?:a|aa)+$"
STUCK = "a" * 60 + "!"


def hiding(settings: Settings, *patterns: str, url: str | None = None) -> Settings:
    """These settings with patterns, and an endpoint to embed with."""
    return with_agent(settings if url is None else asking(settings, url), redaction={"patterns": patterns})


def letters(workers: Workers) -> list[tuple[str, str, str]]:
    with workers.reading("main") as reader:
        assert reader is not None
        return [(letter.key.path, letter.error_class, letter.reason) for letter in reader.dead_letters()]


@pytest.mark.long
@pytest.mark.usefixtures("broker_server")
def test_one_document_is_a_dead_letter_and_other_settings_index_it(
    settings: Settings, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.maintenance.SWEEP_SECONDS", 0.2)
    workers = Workers(hiding(settings, r"FP-\d+", ENDLESS, url=server.url))
    with workers:
        workers.write("memory/bad.md", f"The bluebird FP-131 sings.\n{STUCK}\n")
        workers.write("memory/good.md", "The heron FP-131 stands in the reeds.\n")
        workers.mark("memory/bad.md", "memory/good.md")
        wait_until(lambda: workers.finds("heron"))
        wait_until(lambda: bool(letters(workers)))
        [(path, error_class, reason)] = letters(workers)
        assert (path, error_class) == ("memory/bad.md", "PatternTooCostly")
        assert reason.startswith("pattern 2 ")
        assert reason.count("rewrite") == 1
        workers.note("memory/late.md", "The stork came late.\n")
        wait_until(lambda: workers.finds("stork"))
        assert not workers.finds("bluebird")
    assert not any("bluebird" in text or "FP-131" in text for text in server.texts)
    assert files_with(settings.home, lambda content: b"bluebird" in content) == []

    mended = Workers(hiding(settings, r"FP-\d+", "a+$", url=server.url))
    with mended:
        wait_until(lambda: mended.finds("bluebird"))
        wait_until(lambda: not letters(mended))
    assert server.paid_twice == set(), "what had not changed was not paid again"


@pytest.mark.usefixtures("broker_server")
def test_a_worker_is_not_held_by_it_when_it_is_to_end(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.run.DRAIN_SECONDS", 0.5)
    workers = Workers(hiding(settings, ENDLESS))
    with workers:
        # Its size allows the pattern some more seconds.
        workers.note("memory/bad.md", f"{STUCK}\n" + "The heron stands in the reeds.\n" * 100_000)
        wait_until(lambda: workers.client.llen(f"{workers.keys.dramatiq}:live") == 0)
        workers.asked_to_stop.set()
        workers.stop()
        # A job that ends as it is given back leaves a message for the rest, too.
        assert workers.client.llen(f"{workers.keys.dramatiq}:live") in {1, 2}, "another one takes the job"


def test_a_question_is_answered_without_it_and_sent_nowhere(settings: Settings, server: EmbeddingServer) -> None:
    settings = hiding(settings, r"FP-\d+", ENDLESS, url=server.url)
    write_index(settings).close()
    with running(settings) as client:
        answer = search(client, f"bluebird {STUCK}")
        assert answer["results"] == []
        assert answer["error"].startswith("pattern 2 ")
        assert answer["action"]
        assert answer["warning"]
        assert (answer["unavailable"], "disabled" in answer) == (True, False), "others are answered"
        assert "bluebird" not in json.dumps(answer)
        assert not any("bluebird" in text for text in server.texts)
        assert "error" not in search(client, "MEMORY")


@pytest.mark.usefixtures("broker_server")
def test_a_document_is_not_shown_without_it(settings: Settings, workspace: Path) -> None:
    sessions = workspace.parent / "sessions"
    sessions.mkdir()
    said = [{"role": "user", "content": text, "timestamp": 1767225600} for text in ("hello", f"bluebird {STUCK}")]
    (sessions / "one.jsonl").write_text("".join(json.dumps(line) + "\n" for line in said), "utf-8")
    (workspace / "memory" / "bad.md").write_text(f"bluebird\n{STUCK}\n", "utf-8")
    (workspace / "memory" / "good.md").write_text("The heron.\n", "utf-8")
    with running(with_agent(hiding(settings, ENDLESS), sessions=[str(sessions)])) as client:
        for path in ("memory/bad.md", "sessions/one.jsonl"):
            answer = client.post("/v1/get", json={"path": path}).json()
            assert "redaction.patterns" in answer["error"]
            assert answer["unavailable"]
            assert "bluebird" not in json.dumps(answer)
        assert client.post("/v1/get", json={"path": "memory/good.md"}).json()["text"] == "The heron."


def test_others_are_answered_while_a_question_is_stuck(settings: Settings, workspace: Path) -> None:
    write_index(settings).close()
    # Its size allows the pattern some seconds.
    (workspace / "memory" / "bad.md").write_text(f"bluebird\n{STUCK}\n" + "The heron.\n" * 300_000, "utf-8")
    with running(hiding(settings, ENDLESS)) as client, ThreadPoolExecutor(1) as threads:
        stuck = threads.submit(client.post, "/v1/get", json={"path": "memory/bad.md"})
        assert "error" not in search(client, "MEMORY")
        assert client.get("/healthz").status_code == 200
        assert client.get("/v1/status").status_code == 200
        assert not stuck.done()
        assert stuck.result().json()["unavailable"]
