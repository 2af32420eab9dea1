"""Settings of redaction: its switches, and the masks and the cost of patterns."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import regex

import memory
from memory.redaction import PatternTooCostly, is_costly, redact, redaction_facts, redactor_for
from memory.redaction.user_patterns import PatternBudget, UserPatterns, as_regex_reads_it
from schemas.settings import AgentSettings
from tests.secret_samples import PASSWORD

ENDLESS = "(?:a|aa)+$"
STUCK = "a" * 60 + "! the word is bluebird"


SECRET = "password: " + PASSWORD
BOTH = ("memory", "sessions")


def agent(**redaction: object) -> AgentSettings:
    return AgentSettings.model_validate({"id": "main", "workspace": Path("/nowhere"), "redaction": redaction})


def test_both_sources_are_redacted_unless_switched_off() -> None:
    for source in BOTH:
        assert redactor_for(agent(), source)(SECRET) == "password: [redacted:password]"
        assert redactor_for(agent(**{source: False}), source)(SECRET) == SECRET
    assert redactor_for(agent(sessions=False), "memory")(SECRET) != SECRET


def test_a_query_is_redacted_while_either_source_is() -> None:
    for switches in ({}, {"memory": False}, {"sessions": False}):
        assert PASSWORD not in redactor_for(agent(**switches), *BOTH)(SECRET)
    assert redactor_for(agent(memory=False, sessions=False), *BOTH)(SECRET) == SECRET


def test_the_facts_change_with_what_changes_an_index_and_tell_no_pattern() -> None:
    kinds = [agent(), agent(memory=False), agent(sessions=False), agent(patterns=["a"]), agent(patterns=["b"])]
    facts = [redaction_facts(one) for one in kinds]
    assert len({repr(one) for one in facts}) == len(kinds)
    assert "bluebird" not in repr(redaction_facts(agent(patterns=["bluebird"])))
    assert redaction_facts(agent()) == redaction_facts(agent())


def redactor(*patterns: str, seconds: float = 0.2) -> Callable[[str], str]:
    return partial(redact, find_patterns=UserPatterns(patterns, PatternBudget(seconds, 1.0)))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (ENDLESS, STUCK),
        (r"(\w+\s?)*:", "word " * 20_000 + "\n:"),
        (r"\s+$", " " * 400_000 + "x"),
        (".*.*.*x", "a" * 100_000 + "\nx"),
    ],
)
def test_a_pattern_that_never_ends_is_named_and_the_next_text_is_redacted(pattern: str, text: str) -> None:
    with pytest.raises(PatternTooCostly) as failure:
        redactor(r"FP-\d+", pattern, "c")(text)
    assert failure.value.place == 2
    assert "bluebird" not in str(failure.value)
    assert pattern not in str(failure.value), "a pattern may be a secret itself"
    assert redactor(r"FP-\d+", pattern)("FP-12.").startswith("[redacted:pattern]")


def test_memory_is_bounded_too() -> None:
    with pytest.raises(PatternTooCostly) as failure:
        redactor(r"(?:(a|b)+?)*?[cd]", seconds=60.0)("ab" * 2_000_000)
    assert failure.value.place == 1
    assert redactor("b+")("abb") == "a[redacted:pattern]"


def test_all_texts_of_a_document_share_a_budget_that_grows_with_them() -> None:
    costly = "a" * 20 + "!"  # takes some milliseconds
    find = UserPatterns([ENDLESS], PatternBudget(0.1, 1.0))
    with pytest.raises(PatternTooCostly):
        any(find(costly, b"") for _ in range(10_000))
    find = UserPatterns([ENDLESS], PatternBudget(0.1, 1.0))
    begun = time.thread_time()
    while time.thread_time() < begun + 0.3:
        find(costly, b"a" * 1_000_000)


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
@pytest.mark.parametrize(
    ("pattern", "text", "left"),
    [
        (r"FP-\d+", "see FP-131 and FP-7", "see [redacted:pattern] and [redacted:pattern]"),
        (r"room (\d+), bed (\d)", "room 12, bed 3", "room [redacted:pattern], bed [redacted:pattern]"),
        (r"(a)|b+", "xaxbb", "x[redacted:pattern]x[redacted:pattern]"),
        (r"(?s)begin.*end", "begin\r\n x \n\nend", "[redacted:pattern]\r\n [redacted:pattern] \n\n[redacted:pattern]"),
        (r"x*", "abc", "abc"),
        (r"x*", "axxb", "a[redacted:pattern]b"),
        (r"", "abc", "abc"),
        (r"redacted|pass\w+", SECRET, "[redacted:pattern]: [redacted:password]"),
        (r"王\w", f"王五的密码：{PASSWORD}", "[redacted:pattern]的密码：[redacted:password]"),
        (r"\ud83d\S+|!", "a \ud83dx !", "a [redacted:pattern] [redacted:pattern]"),
        ("x{e}", "x{e} x", "[redacted:pattern] x"),
        ("(?:foo){i<=1}", "foo fo foo{i<=1}", "foo fo [redacted:pattern]"),
        ("[[:alpha:]]", "a :] b", "a [redacted:pattern] b"),
        (r"[]\[x]{2}", "a[]b", "a[redacted:pattern]b"),
        ("(?x) x{e} # [ {e}\n [[b]", "x{e}b", "[redacted:pattern]"),
        (r"\N{DIGIT ONE}{2,}", "a11", "a[redacted:pattern]"),
        ("x{,2}y", "xxxy", "x[redacted:pattern]"),
        ("(?i)\u0131", "I x \u0131", "[redacted:pattern] x [redacted:pattern]"),
        ("(?i)secret: (\\d+)", "SECRET: 12", "SECRET: [redacted:pattern]"),
        (r"(?<=room )\d++(?!\d)", "room 12", "room [redacted:pattern]"),
        (r"(?:(\w)\1)++", "aabbc", "[redacted:pattern]a[redacted:pattern]bc"),
        ("王(\ud800)", "王\ud800.", "王[redacted:pattern]."),
    ],
)
def test_what_python_understands_by_a_pattern_is_what_is_masked(pattern: str, text: str, left: str) -> None:
    """Groups are masked, or the match. Some of these mean something else to the `regex` library, or nothing."""
    redacting = redactor_for(agent(patterns=[pattern]), "memory")
    assert redacting(text) == left
    assert redacting(left) == left


TEXT = "x{e} a :] b xx{} {e}[[[x1 foofoo{i<=1} fo0 a{e}[b ss\u00df Kk\u212a {,3} 12\n\tend of it: Caf\u00e9"


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
@pytest.mark.parametrize(
    "pattern",
    [
        "{", "}", "x{", "{e}", r"\{e}", "x{}", "x{1", "x{1,", "x{1,2}", "x{,}", "a{e}?", "[{e}]+", "[[:digit:]]+",
        "[^[]+", r"[\]\[]+", "[]]", "[^]]+", "(?i)[k]", "(?i)ss", r"\bfoo", r"(?P<n>x)(?P=n)", "(?:x|y)*+", "(?>x+)",
        r"(?<!x)\d", "(?m)^\tend", "(?ims:caf\u00e9)", "(?x) x { e } # y", "(x)?(?(1)x|a)", r"\x78\u007b", r"\A.",
        r"\Z", r"(?a)\w+",
    ],
)  # fmt: skip
def test_both_libraries_find_the_same(pattern: str) -> None:
    expected = [match.span() for match in re.finditer(pattern, TEXT)]
    assert [match.span() for match in regex.finditer(as_regex_reads_it(pattern), TEXT, regex.V0)] == expected


@pytest.mark.parametrize("pattern", [r"(\w+\s?)*:", r"(\d+-?)+z", "(.*)(.*)(.*)(.*)Q", "(?:bird)?(b+)+$"])
def test_a_pattern_that_never_ends_is_costly(pattern: str) -> None:
    assert is_costly(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"FP-\d+",
        r"(?i)employee[ -]?id:? *(\d{6})",
        r"\b\d{3}-\d{2}-\d{4}\b",
        r"[\w.+-]+@[\w-]+\.[\w.]+",
        r"(?s)begin secret.*?end secret",
        r"\s+$",
        "",
        "王\\w",
    ],
)
def test_a_usual_pattern_is_not_costly(pattern: str) -> None:
    assert not is_costly(pattern)


def test_without_patterns_the_library_is_not_loaded() -> None:
    program = "import sys; from memory.redaction import redact; redact('x'); print('regex' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], cwd=Path(memory.__file__).parents[1], capture_output=True)
    assert run.stdout.strip() == b"False"
