"""The parts as separate processes on one REDIS_URL, as containers and units run them, with what watches them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.daemon import started
from tests.ports import free_port
from tests.waiting import wait_until


@contextmanager
def part(*arguments: str, home: Path, environment: dict[str, str]) -> Iterator[Path]:
    """One long-running command until the block ends; what it logs is in the file."""
    log = home.parent / f"{'-'.join(arguments).replace('/', '')}.log"
    with log.open("ab") as file:
        process = started(*arguments, home=home, environment=environment, stderr=file, stdin=subprocess.DEVNULL)
        try:
            yield log
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()


def told(text: str, series: str) -> float:
    return sum(
        float(found) for found in re.findall(rf"^{re.escape(series)}(?:{{[^}}]*}})? (\S+)$", text, flags=re.MULTILINE)
    )


@pytest.mark.long
def test_producers_two_workers_and_a_query_service_share_one_queue(home: Path, workspace: Path, redis_url: str) -> None:
    (workspace / "MEMORY.md").write_text("The gateway listens on port 18789.\n", "utf-8")
    config = home.parent / "recalld.toml"
    config.write_text(f'provider = "stub"\n[[agents]]\nid = "main"\nworkspace = "{workspace}"\n', "utf-8")
    environment = {"REDIS_URL": redis_url, "RECALLD_CONFIG": str(config)}
    ports = (free_port(), free_port())
    with ExitStack() as stack:
        for arguments in (
            ("watch",),
            *(("work", "--port", str(port)) for port in ports),
            ("serve", "--port", "0"),
        ):
            stack.enter_context(part(*arguments, home=home, environment=environment))
        where = wait_until(lambda: json.loads((home / "run" / "service.json").read_bytes())
                           if (home / "run" / "service.json").exists() else None)  # fmt: skip
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{where['port']}", timeout=60))
        wait_until(lambda: client.post("/v1/search", json={"query": "gateway port"}).json()["results"])
        seen = wait_until(
            lambda: (
                text
                if told(text := client.get("/metrics").text, "recalld_documents_total") >= 1
                and told(text, "recalld_jobs_total") >= 1
                and told(text, "recalld_event_to_searchable_seconds_count") >= 1
                else ""
            )
        )
        assert told(seen, "recalld_event_to_searchable_seconds_count") == 1
        assert told(seen, "recalld_broker_up") == 1

        def jobs() -> float:
            pages = [httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text for port in ports]
            return sum(told(page, "recalld_worker_job_seconds_count") for page in pages)

        # What each tells of itself adds up to what the service tells of all.
        wait_until(lambda: jobs() == told(client.get("/metrics").text, "recalld_jobs_total"))
    assert not (home / "broker").exists()
