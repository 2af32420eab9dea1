"""No input makes it slow: twice the text takes twice the time."""

from __future__ import annotations

import gc
import random
import time

import pytest

from memory.redaction import redact
from tests.benchmarks.bench_redaction import WORST_CASES

#: A quadratic rule would take four times as long.
MOST = 3.4


def seconds(text: str) -> float:
    # What other tests have left in memory is not looked through meanwhile.
    gc.disable()
    try:
        begun = time.thread_time()
        redact(text)
        return time.thread_time() - begun
    finally:
        gc.enable()


@pytest.mark.parametrize("case", WORST_CASES)
def test_twice_the_worst_input_takes_at_most_about_twice_as_long(case: str) -> None:
    short, long = WORST_CASES[case](400_000), WORST_CASES[case](800_000)
    ratios = []
    # What else this machine does can only spoil a measurement: one good one of several shows it.
    for _ in range(6):
        ratios.append(seconds(long) / max(seconds(short), 1e-4))
        if ratios[-1] <= MOST:
            return
    pytest.fail(f"800 kB of {case} took {min(ratios):.1f} times as long as 400 kB")


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
