"""The page as a browser shows it: its script runs under its own content security policy and finds a note."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.daemon import Daemon
from tests.waiting import wait_until

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=8000",
    "--dump-dom",
)


@pytest.mark.long
def test_the_page_searches_and_shows_the_state_of_every_agent(home: Path, workspace: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        assert "CI" not in os.environ, "the machine that runs CI needs chromium"
        pytest.skip("no chromium here")
    with Daemon(home, workspace) as daemon:
        daemon.write("memory/page.md", "The <b>gateway</b> & its port 18789 are shown as text.\n网关重启了。\n")
        wait_until(lambda: daemon.found("网关", "memory/page.md"), timeout=30)
        port = json.loads((home / "run" / "service.json").read_text())["port"]
        url = f"http://127.0.0.1:{port}/?q={quote('gateway 网关')}"
        shown = subprocess.run(
            [browser, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", url],
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
    assert "memory/page.md:1-2" in shown
    assert "The &lt;b&gt;gateway&lt;/b&gt; &amp; its port" in shown
    assert "1 indexed, 1 on disk" in shown
