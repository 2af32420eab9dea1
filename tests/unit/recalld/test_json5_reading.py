"""JSON as people write it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld.discovering.json5_reading import NotJson5, read_json5

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
    max_leaves=20,
)


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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("{", 1),
        ("{\n a: 1\n b: 2 }", 3),
        ("[1 2]", 1),
        ("{a}", 1),
        ("[,]", 1),
        ("'secret", 1),
        ("'sec\nret'", 1),
        ("{a: secret}", 1),
        ("[]\n[]", 2),
        ("/* secret", 1),
        ("'\\u12'", 1),
        ("12abc", 1),
        ("[" * 10_000, 1),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_without_its_text(text: str, line: int) -> None:
    with pytest.raises(NotJson5, match=rf"^line {line}: expected ") as wrong:
        read_json5(text)
    assert "secret" not in str(wrong.value)


@given(st.text(alphabet="{}[]:,'\"\\/*\n ae1.-+x"))
def test_any_text_is_a_value_or_refused(text: str) -> None:
    try:
        read_json5(text)
    except NotJson5:
        return
