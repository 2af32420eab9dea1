"""Truth of docs/differences.md: its defaults and limits are the code's, and no default that OpenClaw has is missing."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from memory.backends import backend_fallback
from memory.context import flush
from memory.embedding import breaker, rate_limit, sender
from memory.embedding.providers.presets import MOST_TOKENS
from memory.search import freshness, get, retrieval
from memory.search.tool_definitions import SEARCH, TOOLS
from producers.dispatcher import NOTE_BOUND
from recalld.settings.keys import top_level_keys
from tests.documentation import PAGES
from workers import failure_policy

PAGE = PAGES["docs/differences.md"]
DIFFERENT, SAME = PAGE.split("## The same")

#: Defaults of OpenClaw 2026.9.6 (of QMD, before it was taken out) that are not recalld's, in recalld's names and units.
OTHERS: dict[str, Any] = {
    "provider": "openai",
    "remote.batch.timeout_minutes": 60,
    "query.hybrid.mmr.enabled": True,
    "query.hybrid.temporal_decay.enabled": True,
    "limits.timeout_ms": 30_000,
    "sync.interval_minutes": 0,
    "cache.max_entries": 50_000,
    "qmd.sessions.enabled": False,
    "scope.default": "deny",
}

#: Limit as the page has it, made from the code -> True if the words in it are the code's, too.
LIMITS = {
    f"{get.DEFAULT_LINES} lines, {get.MAX_CHARACTERS:,} characters |": True,
    f"at least {retrieval.MIN_CANDIDATES}, ": True,
    f"at most {retrieval.MAX_CANDIDATES} |": True,
    f"at most {MOST_TOKENS:,} tokens": True,
    f"for {sender.PATIENCE_SECONDS:.0f} s of waits, then the job after {failure_policy.BACKOFF_SECONDS:.0f} s to "
    f"{failure_policy.BACKOFF_MAX_SECONDS / 60:.0f} min": True,
    "one attempt a minute": rate_limit.REFUSED_SECONDS == 60,
    f"one test after {breaker.FIRST_PAUSE_SECONDS / 60:.0f} to {breaker.LONGEST_PAUSE_SECONDS / 60:.0f} min": True,
    "fails for five minutes": failure_policy.LOST_AFTER_SECONDS == 300,
    "waits for them, half a second at most": freshness.DEFAULT_WAIT_MS == 500,
    "after ten times the debounce": NOTE_BOUND == 10,
    "own index for ten seconds": backend_fallback.BACKOFF_SECONDS == 10,
    "each at most a quarter of the window": flush.MAX_RESERVE_PART == 4,
    "the same, and `since`, `until`, `queries`": len(TOOLS[SEARCH].input_schema["properties"]) == 4 + 3,
}


def defaults_in(text: str) -> dict[str, Any]:
    """The defaults that a text names, by key; None for an unset one."""
    named = {key: tomllib.loads(f"it = {value}")["it"] for key, value in re.findall(r"`([a-z_.]+) = ([^`]+)`", text)}
    return named | dict.fromkeys(re.findall(r"`([a-z_.]+)` unset", text))


@pytest.mark.parametrize("text", [DIFFERENT, SAME], ids=["different", "same"])
def test_every_default_of_the_page_is_that_of_the_schema(text: str) -> None:
    keys = top_level_keys()
    named = defaults_in(text)
    assert len(named) > 20
    defaults = {name: keys[name].default for name in named}
    assert named == {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}


def test_a_default_of_openclaw_is_either_different_or_the_same() -> None:
    keys, named = top_level_keys(), defaults_in(DIFFERENT)
    assert {name for name, value in OTHERS.items() if keys[name].default == value} == set()
    assert OTHERS.keys() - named.keys() == set()
    assert OTHERS.keys() & defaults_in(SAME).keys() == set()


@pytest.mark.parametrize("limit", LIMITS)
def test_every_limit_of_the_page_is_that_of_the_code(limit: str) -> None:
    assert limit in DIFFERENT
    assert LIMITS[limit]


def test_every_row_has_its_reason_in_a_sentence() -> None:
    rows = [re.split(r" \| ", row.strip("| ")) for row in re.findall(r"^\| .* \|$", DIFFERENT, re.MULTILINE)]
    assert len(rows) > 60
    for row in rows:
        assert len(row) == 4, row
        assert row[3] == "why" or re.fullmatch(r"[A-Z\"`].*\.", row[3]), row
