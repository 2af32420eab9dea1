"""Status says from the record alone which useless answers stopped a provider, and what they cost."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from memory.embedding.breaker import Waste, waste_path
from memory.embedding.selection import choose_provider
from memory.status.vectors import useless_answers
from schemas.conditions import ConditionCode
from schemas.settings import Credentials, MemorySettings

NOW = time.time()
WASTE = Waste(since=NOW, at=NOW, until=NOW, doublings=2, texts=1200, tokens=480_000, error="another width")


@pytest.mark.parametrize(
    ("waste", "asked", "code"),
    [
        (replace(WASTE, got=1024, expected=1536), None, ConditionCode.DIMENSIONS_CHANGED),
        (replace(WASTE, got=1024, expected=512), 512, ConditionCode.PROVIDER_USELESS),
        (WASTE, None, ConditionCode.PROVIDER_USELESS),
        (replace(WASTE, stopped=False, at=NOW - 7200), None, None),
        (None, None, None),
    ],
    ids=["another width", "a width that is not asked for", "no vectors", "a trial of long ago", "no record"],
)
def test_the_record_becomes_the_condition(
    tmp_path: Path, waste: Waste | None, asked: int | None, code: ConditionCode | None
) -> None:
    facts = {"provider": "openai", "remote": {"api_key": "k"}, "output_dimensionality": asked}
    memory = MemorySettings.model_validate(facts)
    provider = choose_provider(memory, Credentials()).provider
    assert provider is not None
    path = waste_path(tmp_path, provider)
    path.parent.mkdir()
    if waste is not None:
        path.write_text(json.dumps(asdict(waste)))
    condition = useless_answers(tmp_path, memory, provider, chunks=1_000_000)
    assert (condition.code if condition is not None else None) is code
    if condition is not None:
        assert (condition.subject, condition.params["billed"], condition.params["tokens"]) == ("openai", 1200, 480_000)
    if code is ConditionCode.DIMENSIONS_CHANGED:
        assert condition is not None
        assert (condition.params["got"], condition.params["expected"]) == (1024, 1536)
        assert (condition.params["texts"], condition.params["cost"]) == ("1,000,000 texts", "at most $8.00")
