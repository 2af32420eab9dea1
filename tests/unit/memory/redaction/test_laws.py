"""What holds for every text."""

from __future__ import annotations

import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from memory.redaction import Redactor, redact
from tests.secret_samples import BY_THEIR_LOOK, WITH_SECRETS, WITHOUT_SECRETS, made, written

_SEEDS = st.integers(0, 1000)
_SECRET_LINES = st.builds(
    lambda line, seed: "".join(written(line, random.Random(seed))), st.sampled_from(WITH_SECRETS), _SEEDS
)
_TOKENS = st.builds(lambda template, seed: made(template, random.Random(seed)), st.sampled_from(BY_THEIR_LOOK), _SEEDS)
_PIECES = st.one_of(
    st.sampled_from(
        ["\n", "\r\n", "\r", " ", "\t", "，", "。", "：", "“", "”", "=", ":", '"', "'", "`", "\\", "\\n", "/"]
    ),
    st.sampled_from(["@", "&", "?", "|", "://", "]", "[redacted:password]", "[redacted:", "\ud800", "\x00", "\u2028"]),
    st.sampled_from(["-----BEGIN PRIVATE" + " KEY-----", "-----END PRIVATE" + " KEY-----", "curl -u a:", "Bearer "]),
    st.sampled_from(
        ["password", "password=", "my password is ", "token: ", "密码：", "密码", "api_key", "sk-", "ghp_"]
    ),
    st.sampled_from(["Basic ", "AKIA", "A" * 20, "a1" * 20, "0" * 40, "é", "\x85"]),
)
_TEXTS = st.lists(
    st.one_of(_SECRET_LINES, _TOKENS, _PIECES, st.sampled_from(WITHOUT_SECRETS), st.text(max_size=12)), max_size=12
).map("".join)

_PATTERNS = st.one_of(
    st.sampled_from([r"\d+", r"", r"x*", r"redacted", r".+", r"(?s).+", r"\s+", r"a(b)?", r"^", r"$", r"\b", r"(a)|b"]),
    st.sampled_from(["密码", r"(?<=\])\w", r"\[", r"[\r\n]+", r"(?m)^.*$", r"[^\x00]"]),
)


def _line_ends(text: str) -> list[str]:
    return re.findall(r"[\r\n]", text)


@settings(max_examples=600, deadline=None)
@given(_TEXTS)
def test_redacting_again_changes_nothing(text: str) -> None:
    redacted = redact(text)
    assert redact(redacted) == redacted


@settings(max_examples=600, deadline=None)
@given(_TEXTS)
def test_lines_stay_as_many_and_end_as_they_did(text: str) -> None:
    redacted = redact(text)
    assert _line_ends(redacted) == _line_ends(text)
    for before, after in zip(text.split("\n"), redacted.split("\n"), strict=True):
        assert bool(before.strip()) == bool(after.strip())


@settings(max_examples=300, deadline=None)
@given(_TOKENS, st.text(max_size=40), st.text(max_size=40), st.sampled_from([" ", "\n", '"', "：", "(", "'", "="]))
def test_a_token_between_signs_never_survives(token: str, before: str, after: str, sign: str) -> None:
    assert token not in redact(f"{before}{sign}{token}{sign}{after}")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WITHOUT_SECRETS), max_size=12).map("\n".join))
def test_a_text_without_secrets_is_returned_itself(text: str) -> None:
    assert redact(text) is text


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyzABC \n，。的了是我", max_size=400))
def test_words_are_never_secrets(text: str) -> None:
    assert redact(text) == text


@settings(max_examples=300, deadline=None)
@given(
    _TEXTS,
    st.lists(_PATTERNS, max_size=3),
)
def test_the_laws_hold_with_anybodys_patterns(text: str, patterns: list[str]) -> None:
    redactor = Redactor.of(patterns)
    redacted = redactor(text)
    assert redactor(redacted) == redacted
    assert _line_ends(redacted) == _line_ends(text)
