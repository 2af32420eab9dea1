"""Useless answers that are billed stop a provider, and no text is paid again and again."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.embedding.batcher import EmbeddingBatcher
from memory.embedding.breaker import ANSWER_SECONDS, Breaker, read_waste
from memory.embedding.coordination import Coordination
from memory.embedding.providers.endpoint import Endpoint
from memory.embedding.providers.exchange import current
from memory.embedding.providers.provider import ProviderLimits
from memory.embedding.providers.remote import RemoteProvider
from memory.embedding.rate_limit import RateLimiter
from memory.store.writer import Refusal
from schemas.documents import Lane
from schemas.errors import Paced, Stopped, Transient, Unusable
from tests.examples import examples
from tests.waiting import Clock
from workers.failure_policy import ProviderFailed, decide

WIDTH, HOUR = 8, 3600.0

#: Ways in which an endpoint answers 200.
GOOD = ("good", "reversed", "without usage")
USELESS = (
    "wrong width",
    "all NaN",
    "all zeros",
    "few NaN",
    "many NaN",
    "too few",
    "too many",
    "same index",
    "truncated",
    "empty",
    "page",
    "list",
    "null",
    "breaks off",
    "mixed widths",
)


class StandIn(RemoteProvider):
    """An endpoint that answers in the manner that `manner` chooses for the texts of a request."""

    def __init__(self, manner: Callable[[Sequence[str]], str], *, inputs: int = 16, concurrency: int = 2) -> None:
        limits = ProviderLimits(inputs, 10_000, 8000, concurrency, chunks_per_second=1e4)
        super().__init__(
            Endpoint(name="openai", model="m", base_url="http://a/v1", api_key="k", key_name="K", limits=limits)
        )
        self.manner, self.with_usage = manner, True
        self.log: list[tuple[str, Sequence[str]]] = []

    @property
    def billed(self) -> int:
        """Texts of requests that were answered 200."""
        return sum(len(texts) for _, texts in self.log)

    def load(self) -> None:
        pass

    def _ask(self, texts: Sequence[str], *, kind: str) -> Any:
        manner = self.manner(texts)
        if manner == "down":
            raise Transient("HTTP 503")
        self.log.append((manner, texts))
        current().accepted = True
        count = len(texts) + {"too few": -1, "too many": 1}.get(manner, 0)
        rows = [[float(len(text)), *[1.0] * (WIDTH - 1)] for text in [*texts, "more"][:count]]
        if manner == "wrong width":
            rows = [row[:5] for row in rows]
        bad = {"all NaN": count, "all zeros": count, "few NaN": count // 4, "many NaN": count - count // 4}
        for place in range(bad.get(manner, 0)):
            rows[place] = [0.0 if manner == "all zeros" else np.nan] * WIDTH
        if manner == "mixed widths":
            rows[0] = rows[0][:3]
        data: list[dict[str, Any]] = [{"index": place, "embedding": row} for place, row in enumerate(rows)]
        if manner == "same index":
            data = [{**entry, "index": 1} for entry in data]
        if manner == "reversed":
            data.reverse()
        usage = {} if manner == "without usage" or not self.with_usage else {"usage": {"total_tokens": 3 * len(texts)}}
        content = json.dumps({"data": data, **usage})
        if manner == "breaks off":
            raise Transient("the connection failed")
        bodies = {"truncated": content[:-9], "empty": "", "page": "<html>Log in</html>", "list": "[]", "null": "null"}
        return json.loads(bodies.get(manner, content))


def keep(path: Path, facts: Any) -> None:
    if facts is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(json.dumps(facts))


class House:
    """A worker with waiting texts, on a clock of its own, that may be restarted at any moment."""

    def __init__(self, provider: StandIn, folder: Path, count: int) -> None:
        self.provider, self.clock = provider, Clock(1e9)
        self.path = folder / "stopped.json"
        self.path.unlink(missing_ok=True)
        self.waiting = {f"hash {number}": f"text {number}" for number in range(count)}
        self.refused: list[str] = []
        self.attempts = 0
        self.batcher = self._started()

    def _started(self) -> EmbeddingBatcher:
        self.breaker = Breaker(self.path, keep=keep, clock=self.clock)
        coordination = Coordination(RateLimiter(self.provider.limits, breaker=self.breaker, clock=self.clock))
        return EmbeddingBatcher(
            self.provider, None, linger_seconds=0.0, coordination=coordination, patience_seconds=0.0
        )

    def restart(self) -> None:
        self.batcher.close(timeout_seconds=5)
        self.batcher = self._started()

    def turn(self) -> float | None:
        """Run a job; return the pause after which the policy runs it again, None if no text waits."""
        ticket = self.batcher.submit(self.waiting, lane=Lane.BACKFILL, dimensions=WIDTH)
        assert ticket.wait(30)
        for text_hash, result in ticket.results().items():
            del self.waiting[text_hash]
            if isinstance(result, Refusal):
                self.refused.append(text_hash)
        error = ticket.error()
        if error is None:
            return None
        decision = decide(ProviderFailed(error) if isinstance(error, Transient) else error, self.attempts)
        assert decision.retry_in is not None
        self.attempts += 1
        return decision.retry_in

    def run(self, *, seconds: float, restarts: Callable[[], bool] = lambda: False) -> None:
        """Let the policy run jobs for so long, with restarts."""
        until = self.clock.now + seconds
        while self.waiting and self.clock.now < until:
            self.clock.now += self.turn() or 0.0
            if restarts():
                self.restart()


@given(seed=st.integers(0, 2**32), count=st.integers(1, 60), share=st.floats(0, 1), inputs=st.sampled_from([1, 4, 16]))
@settings(max_examples=examples(200), deadline=None)
def test_an_hour_bills_twice_the_waiting_texts_and_ten_at_most(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, share: float, inputs: int
) -> None:
    chance = random.Random(seed)
    favourite = chance.choice(USELESS)

    def manner(_texts: Sequence[str]) -> str:
        if chance.random() >= share:
            return chance.choice(GOOD)
        return favourite if chance.random() < 0.5 else chance.choice(USELESS)

    provider = StandIn(manner, inputs=inputs, concurrency=chance.choice([1, 3]))
    house = House(provider, tmp_path_factory.mktemp("home"), count)
    house.run(seconds=HOUR, restarts=lambda: chance.random() < 0.2)
    house.batcher.close(timeout_seconds=5)
    assert provider.billed <= 2 * count + 10, Counter(manner for manner, _ in provider.log)


#: Endpoints that answer a harmless text, and others by a rule.
SLY: dict[str, Callable[[Sequence[str]], str]] = {
    "another width": lambda _texts: "wrong width",
    "NaN": lambda _texts: "all NaN",
    "a page": lambda _texts: "page",
    "a failure": lambda _texts: "down",
    "NaN for several": lambda texts: "good" if len(texts) == 1 else "all NaN",
    "mostly NaN": lambda _texts: "many NaN",
}


@pytest.mark.parametrize("rule", SLY)
@pytest.mark.parametrize(("count", "inputs"), [(1, 16), (40, 16), (40, 1)])
def test_an_endpoint_that_answers_only_a_harmless_text_is_not_paid_for_ever(
    tmp_path: Path, rule: str, count: int, inputs: int
) -> None:
    provider = StandIn(lambda texts: "good" if texts == ["memory"] else SLY[rule](texts), inputs=inputs, concurrency=1)
    house = House(provider, tmp_path, count)
    house.run(seconds=HOUR)
    house.batcher.close(timeout_seconds=5)
    assert provider.billed <= 2 * count + 10


def test_a_swapped_model_is_asked_by_one_text_after_ever_longer_pauses(tmp_path: Path) -> None:
    house = House(provider := StandIn(lambda _texts: "wrong width", concurrency=1), tmp_path, 40)
    times: list[float] = []

    def swapped(_texts: Sequence[str]) -> str:
        times.append(house.clock.now)
        return "wrong width"

    provider.manner = swapped
    house.run(seconds=5 * HOUR, restarts=lambda: True)
    pauses = [round((after - before) / 60) for before, after in itertools.pairwise(times)]
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert {texts[0] for _, texts in provider.log[1:]} == {"memory"}
    assert provider.billed == 16 + 10

    provider.manner = lambda _texts: "good"
    house.run(seconds=2 * HOUR)
    assert not house.waiting
    assert house.breaker.waste() is None
    assert not house.path.exists()
    assert provider.billed == 16 + 10 + 1 + 40
    house.batcher.close(timeout_seconds=5)


@pytest.mark.parametrize("usage", [True, False])
def test_the_record_says_what_came_and_what_it_cost(tmp_path: Path, usage: bool) -> None:
    house = House(provider := StandIn(lambda _texts: "wrong width", concurrency=1), tmp_path, 10)
    provider.with_usage = usage
    house.turn()
    waste = read_waste(house.path)
    assert waste is not None
    assert (waste.got, waste.expected, waste.texts, waste.stopped) == (5, WIDTH, 11, True)
    assert waste.tokens == 3 * 11 if usage else 0 < waste.tokens < 50
    house.batcher.close(timeout_seconds=5)


@pytest.mark.parametrize("manner", ["all NaN", "page"])
def test_a_text_that_is_answered_uselessly_alone_is_refused_and_stops_no_other(tmp_path: Path, manner: str) -> None:
    provider = StandIn(lambda texts: manner if "text 0" in texts else "good")
    house = House(provider, tmp_path, 1)
    house.run(seconds=60.0)
    assert house.refused == ["hash 0"]
    assert Counter(text for _, texts in provider.log for text in texts) == {"text 0": 2, "memory": 1}
    house.waiting = {"hash 1": "text 1"}
    assert house.turn() is None
    assert not house.waiting
    house.batcher.close(timeout_seconds=5)


def stopped(clock: Clock, path: Path | None = None) -> Breaker:
    """A breaker after a useless answer to ten texts, and one to the question."""
    breaker = Breaker(path, keep=keep if path is not None else None, clock=clock)
    for texts in (10, 1):
        breaker.failed(Unusable("of no use"), breaker.admit(texts), texts=texts, tokens=texts)
    return breaker


def test_a_process_that_only_reads_sees_the_stop_and_writes_nothing(tmp_path: Path) -> None:
    clock, path = Clock(1e9), tmp_path / "stopped.json"
    stopped(clock, path)
    reader, content = Breaker(path, clock=clock), path.read_bytes()
    with pytest.raises(Stopped) as refused:
        reader.admit(1, query=True)
    assert refused.value.retry_after is not None
    assert refused.value.retry_after >= 60.0
    clock.now += 60.0 + ANSWER_SECONDS
    permit = reader.admit(1, query=True)
    reader.failed(Unusable("still of no use"), permit, texts=1, tokens=1)
    assert path.read_bytes() == content
    with pytest.raises(Stopped):
        reader.admit(1, query=True)


def test_one_text_at_a_time_leaves_until_as_many_are_good_as_were_billed_in_vain() -> None:
    breaker = stopped(clock := Clock(1e9))
    clock.now += 60.0
    question = breaker.admit(1)
    with pytest.raises(Stopped):
        breaker.admit(1)
    breaker.answered(question, wasted=1)
    for _ in range(12):
        with pytest.raises(Stopped):
            breaker.admit(2)
        text = breaker.admit(1)
        with pytest.raises(Paced):
            breaker.admit(1)
        breaker.answered(text)
    assert breaker.waste() is None, "10 texts and 2 questions were paid for by 12 texts"
    breaker.admit(500)


def test_requests_from_before_the_stop_neither_prolong_nor_end_it() -> None:
    breaker = Breaker(clock=Clock(1e9))
    early = [breaker.admit(10) for _ in range(3)]
    breaker.failed(Unusable("of no use"), early[0], texts=10, tokens=10)
    breaker.failed(Unusable("of no use"), breaker.admit(1), texts=1, tokens=1)
    breaker.failed(Unusable("of no use"), early[1], texts=10, tokens=10)
    breaker.answered(early[2])
    waste = breaker.waste()
    assert waste is not None
    assert (waste.texts, waste.stopped) == (21, True)
    assert breaker.seconds() == 60.0


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_clock_that_jumps_costs_a_question_and_no_day(jump: float) -> None:
    breaker = stopped(clock := Clock(1e9))
    clock.now += jump
    breaker.failed(Unusable("of no use"), breaker.admit(1), texts=1, tokens=1)
    assert breaker.seconds() == 120.0
