"""The pages load nothing from elsewhere and run nothing but their own scripts."""

from __future__ import annotations

import base64
import hashlib
import re

from memory.service import pages


def test_every_script_and_style_is_allowed_by_its_hash():
    policy = pages.HEADERS["Content-Security-Policy"]

    for text in (pages.front_page(["a", "b"]), pages.docs_page()):
        parts = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", text, flags=re.S)
        assert len(parts) == 2
        for part in parts:
            assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in policy


def test_nothing_is_loaded_from_elsewhere():
    for text in (pages.front_page([]), pages.docs_page()):
        assert "http://" not in text
        assert "https://" not in text
        assert "src=" not in text
        assert "innerHTML" not in text


def test_agent_names_are_escaped():
    assert "<script>x" not in pages.front_page(["<script>x", "b"])
    assert "&lt;script&gt;x" in pages.front_page(["<script>x", "b"])
