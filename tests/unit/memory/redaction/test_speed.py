"""No input makes it slow: twice the text takes twice the time."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable

import pytest

from memory.redaction import redact
from memory.redaction.masking import Span, mask_spans
from tests.benchmarks.bench_redaction import WORST_CASES

#: A quadratic rule would take four times as long.
MOST = 3.4


def seconds(text: str) -> float:
    return seconds_of(lambda: redact(text))


def seconds_of(work: Callable[[], object]) -> float:
    # What other tests have left in memory is not looked through meanwhile.
    gc.disable()
    try:
        begun = time.thread_time()
        work()
        return time.thread_time() - begun
    finally:
        gc.enable()


@pytest.mark.parametrize("case", WORST_CASES)
def test_twice_the_worst_input_takes_at_most_about_twice_as_long(case: str) -> None:
    short, long = WORST_CASES[case](400_000), WORST_CASES[case](800_000)
    assert_linear(lambda: redact(short), lambda: redact(long), of=case)


def test_secrets_among_masks_cost_no_more_when_there_are_many() -> None:
    def masking(count: int) -> Callable[[], object]:
        piece = b"[redacted:a] x "
        spans = [Span(at, at + 1, "key") for at in range(13, count * len(piece), len(piece))]
        return lambda: mask_spans(piece * count, spans)

    assert masking(2)() == b"[redacted:a] [redacted:key] " * 2
    assert_linear(masking(30_000), masking(60_000), of="secrets among masks")


def assert_linear(short: Callable[[], object], long: Callable[[], object], *, of: str) -> None:
    """`long` has twice as much to do as `short`."""
    ratios = []
    # What else this machine does can only spoil a measurement: one good one of several shows it.
    for _ in range(6):
        ratios.append(seconds_of(long) / max(seconds_of(short), 1e-4))
        if ratios[-1] <= MOST:
            return
    pytest.fail(f"twice as much of {of} took {min(ratios):.1f} times as long")


_STARTS = (
    *("", "password=", "password: ", "token='", "my password is ", "api_key: /", "密码：", "a://", "a://b:", "bearer "),
    *("cookie: ", "cookie: a=", "curl -b a=", "auth: ", "--password ", "password is "),
    *("authorization: ", "curl -u ", "mysql ", "sk-", "pa-", "eyJ", "A3-", "-----BEGIN PRIVATE KEY-----\n"),
)
_PIECES = (*tuple("aA0-_./ =:\"'\\([*,"), "a1", "a-", "/a", "://", "\\n", ";", "a=", "; ")
_ENDS = ("", "!", '"', "\n", "\x01", "é", "@", "0")


def test_no_short_text_takes_long_however_it_repeats_itself() -> None:
    source = random.Random(8)
    for _ in range(3000):
        unit = "".join(source.choices(_PIECES, k=source.randint(1, 3)))
        text = source.choice(_STARTS) + unit * (600 // len(unit)) + source.choice(_ENDS)
        # Half a millisecond is usual; a rule that tries all ways to cut it up would not end.
        assert seconds(text) < 0.5, text
