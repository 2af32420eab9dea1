"""Secrets in the lines of transcripts, which stay JSON."""

from __future__ import annotations

import json
import random

import pytest

from memory.redaction.json_lines import redact_line
from memory.redaction.redactor import redact
from tests.secret_samples import PASSWORD, WITH_SECRETS, written
from tests.transcript_files import FORMATS, OTHER_FORMATS, transcript


@pytest.mark.parametrize("name", [*FORMATS, *OTHER_FORMATS])
def test_lines_without_secrets_stay_as_they_are(name: str) -> None:
    for line in transcript(name, turns=9).splitlines():
        assert redact_line(line, redact) == line


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_secret_is_masked_at_any_depth_however_the_line_is_written(ascii_only: bool) -> None:
    source = random.Random(5)
    for sample in WITH_SECRETS:
        before, secret, after = written(sample, source)
        text = f"早上好\n{before}{secret}{after}"
        line = json.dumps({"type": "message", "content": [{"text": text, "n": 1}]}, ensure_ascii=ascii_only)
        masked = redact_line(line.encode(), redact)
        assert json.loads(masked)["content"] == [{"text": redact(text), "n": 1}]
        assert redact_line(masked, redact) == masked


def test_a_key_is_the_label_of_its_string() -> None:
    masked = redact_line(json.dumps({"input": {"password": PASSWORD, "user": PASSWORD[::-1]}}).encode(), redact)
    assert json.loads(masked) == {"input": {"password": "[redacted:password]", "user": PASSWORD[::-1]}}


@pytest.mark.parametrize(
    "line",
    [
        f'{{"a": "password: {PASSWORD}", "a": ""}}',
        f"not JSON, password: {PASSWORD}",
        f'{{"text": "password: {PASSWORD}',
        f'{"[" * 100_000}"password: {PASSWORD}"',
    ],
    ids=["the same key twice", "no JSON", "cut", "nested too deeply"],
)
def test_a_line_that_no_reader_takes_leaks_nothing(line: str) -> None:
    assert PASSWORD.encode() not in redact_line(line.encode(), redact)


def test_a_line_with_half_a_surrogate_pair_stays_valid_utf8() -> None:
    masked = redact_line(f'{{"a":"\\ud800 password: {PASSWORD}"}}'.encode(), redact)
    assert json.loads(masked.decode()) == {"a": "\ud800 password: [redacted:password]"}
