"""Files that the client carries are those that the service's own definitions make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NotRequired, get_origin, get_type_hints, is_typeddict

import pytest

import recalld.client
from recalld.client import GetAnswer, SearchAnswer, Status
from schemas import search, status
from tests.answer_types import answer_types
from tests.tool_docs import tools_json

CARRIED = Path(recalld.client.__file__).parent


@pytest.mark.parametrize(("file", "content"), [("tools.json", tools_json), ("answers.py", answer_types)])
def test_a_generated_file_is_fresh(file: str, content: Any) -> None:
    assert (CARRIED / file).read_text("utf-8") == content(), "run `make docs`"


def required(kind: Any) -> set[str]:
    hints = get_type_hints(kind, include_extras=True)
    return {key for key, hint in hints.items() if get_origin(hint) is not NotRequired}


def matches(value: object, kind: Any) -> bool:
    """Return True if a JSON object has the keys of a typed dictionary, and so have the objects within."""
    if not is_typeddict(kind):
        return True
    assert isinstance(value, dict)
    hints = get_type_hints(kind)
    assert required(kind) <= set(value) <= set(hints)
    return all(matches(member, hints[key]) for key, member in value.items())


def test_the_smallest_answers_have_their_types() -> None:
    """What is None is not sent; what has a default is."""
    found = search.SearchAnswer(
        results=(search.SearchResult(path="a", start_line=1, end_line=1, score=1, snippet="", source="memory"),)
    )
    read = search.GetAnswer(path="a")
    said = status.Status(
        ok=True,
        version="1",
        home="/",
        agents=(),
        cache=status.CacheState(enabled=True),
        broker=status.BrokerState(reachable=True, private=True),
        disk_use=status.DiskUse(),
        versions=status.Versions(recalld="1", python="3", sqlite="3"),
    )
    for answer, kind in ((found, SearchAnswer), (read, GetAnswer), (said, Status)):
        text = answer.model_dump_json(by_alias=True, exclude_none=True)
        assert matches(json.loads(text), kind)
        assert set(json.loads(text)) == required(kind)
