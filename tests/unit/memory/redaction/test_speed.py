"""No input makes it slow: twice the text takes twice the time."""

from __future__ import annotations

import time

import pytest

from memory.redaction import redact
from tests.benchmarks.bench_redaction import WORST_CASES

#: A quadratic rule would take four times as long.
MOST = 3.0


def seconds(text: str) -> float:
    begun = time.process_time()
    redact(text)
    return time.process_time() - begun


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
