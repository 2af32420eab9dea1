"""The table of failures: from an error and its attempts to what happens next."""

from __future__ import annotations

import pytest
from dramatiq.middleware import TimeLimitExceeded

from memory.store.errors import KeywordsUnavailable, NoRoom, NotOwner, StoreBusy, StoreCorrupt, StoreFull, Superseded
from schemas.conditions import ConditionCode
from schemas.errors import (
    BrokerUnavailable,
    OutOfMemory,
    Paced,
    Permanent,
    Stopped,
    Terminal,
    Throttled,
    Transient,
    Unusable,
    Waiting,
)
from workers.failure_policy import Decision, Postponed, ProviderFailed, decide

TABLE = [
    (Postponed("", retry_in=7.0), 9, Decision(7.0)),
    (Postponed("", retry_in=0.5, condition=ConditionCode.PROVIDER_MISSING), 0, Decision(0.5, "provider_missing")),
    (TimeLimitExceeded(), 3, Decision(1.0)),
    (BrokerUnavailable("away"), 3, Decision(1.0)),
    (StoreCorrupt("torn"), 0, Decision(None, "index_set_aside", rebuild=True)),
    (MemoryError(), 5, Decision(2.0, ends=True)),
    (OutOfMemory("no memory left"), 5, Decision(2.0, ends=True)),
    (ProviderFailed(OutOfMemory("no memory left")), 5, Decision(2.0, ends=True)),
    (KeywordsUnavailable("no FTS5"), 0, Decision(60.0, "keywords_unavailable")),
    (NoRoom("small"), 0, Decision(60.0, "no_space")),
    (StoreFull("full"), 0, Decision(10.0, "store_full")),
    (StoreBusy("busy"), 1, Decision(4.0, "job_failed")),
    (Superseded("another generation"), 5, Decision(0.2)),
    (NotOwner("another process owns it"), 5, Decision(1.0, "settings_older")),
    (Paced("later", retry_after=3.0), 5, Decision(3.0)),
    (Terminal("bad key"), 5, Decision(60.0, "provider_refuses", fallback_after=0.0)),
    (ProviderFailed(Transient("503")), 0, Decision(2.0, "provider_fails", fallback_after=300.0)),
    (ProviderFailed(Transient("503")), 2, Decision(8.0, "provider_fails", fallback_after=300.0)),
    (ProviderFailed(Throttled("429", retry_after=1.5)), 2, Decision(1.5, "provider_fails")),
    (
        ProviderFailed(Waiting("", retry_after=0.0)),
        0,
        Decision(0.5, "provider_fails", news=False, fallback_after=300.0),
    ),
    (ProviderFailed(Paced("", retry_after=3.0)), 2, Decision(3.0)),
    (ProviderFailed(Unusable("another width", got=32, expected=64)), 1, Decision(4.0, "provider_useless")),
    (ProviderFailed(Stopped("another width", retry_after=240.0)), 9, Decision(240.0, "provider_useless")),
    (Transient("once more", retry_after=9.0), 0, Decision(9.0, "job_failed")),
    (Permanent("never"), 0, Decision(2.0, "job_failed")),
    (ZeroDivisionError(), 0, Decision(2.0, "job_failed")),
    (ZeroDivisionError(), 3, Decision(16.0, "job_failed")),
    (ZeroDivisionError(), 99, Decision(300.0, "job_failed")),
]


@pytest.mark.parametrize(("error", "attempts", "decision"), TABLE, ids=lambda value: type(value).__name__)
def test_each_failure_has_one_consequence(error: BaseException, attempts: int, decision: Decision) -> None:
    assert decide(error, attempts) == decision
