"""OpenClaw's settings are read as JSON5."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld.discover.openclaw import NotJson5, read_json5

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
    max_leaves=20,
)


@pytest.mark.long
@given(values, st.sampled_from([None, 2]), st.booleans())
def test_all_json_is_read_as_json(value: Any, indent: int | None, ascii_only: bool) -> None:
    assert read_json5(json.dumps(value, indent=indent, ensure_ascii=ascii_only)) == value or value != value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1, $b_2: 2, 'c d': 3, \"e\": 4,}", {"a": 1, "$b_2": 2, "c d": 3, "e": 4}),
        ("// one\n{ /* two\n */ a /**/ : [1, 2, /* // */], } // three", {"a": [1, 2]}),
        ("['it\\'s', 'a \"b\"', 'one\\\ntwo', '\\x41\\u0042\\n\\q']", ["it's", 'a "b"', "onetwo", "AB\nq"]),
        ("[+1, -.5, 5., 0x1F, -0xf, 1e3, -Infinity]", [1, -0.5, 5.0, 31, -15, 1000.0, -math.inf]),
        ("'http://not.a/comment'", "http://not.a/comment"),
        ("{ключ: '值'}", {"ключ": "值"}),
        ("\ufeff [ ] ", []),
        ("{true: null, null: true}", {"true": None, "null": True}),
        ("'one\\\r\ntwo'", "onetwo"),
    ],
)
def test_what_json_has_not(text: str, value: Any) -> None:
    assert read_json5(text) == value


def test_halves_of_a_character_are_joined_and_single_ones_replaced() -> None:
    assert read_json5("{a: '\\ud83d\\ude00', b: '\\ud83d'}") == {"a": "\U0001f600", "b": "\ufffd"}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{", "line 1, column 2"),
        ("{\n a: 1\n b: 2 }", "line 3, column 2"),
        ("[1 2]", "line 1, column 4"),
        ("'secret", "line 1, column 8"),
        ("'sec\nret'", "line 1, column 5"),
        ("{a: secret}", "line 1, column 5"),
        ("[]\n[]", "line 2, column 1"),
        ("/* secret", "line 1, column 10"),
        ("", "line 1"),
        ("[" * 10_000, "levels"),
        ("{a: " * 10_000, "levels"),
        (f"[{'9' * 10_000}]", "line 1, column"),
    ],
)
def test_an_error_names_its_place_and_repeats_nothing_of_the_text(text: str, place: str) -> None:
    with pytest.raises(NotJson5, match=place) as wrong:
        read_json5(text)
    assert "secret" not in str(wrong.value)
