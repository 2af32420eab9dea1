"""Changing somebody else's JSON file without touching anything else in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld.json_editing import Edit, insert_item, insert_member, remove, shown

values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=4), below, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=4), values, max_size=4)
layouts = st.sampled_from([None, 0, 1, 2, 4, "\t"])


@given(objects, layouts, values)
def test_a_member_joins_and_everything_else_keeps_its_characters(
    before: dict[str, Any], indent: int | str | None, value: Any
) -> None:
    before.pop("hooks", None)
    text = json.dumps(before, indent=indent)
    edit = insert_member(text, [], "hooks", value)
    after = edit.apply(text)
    assert json.loads(after) == {**before, "hooks": value}
    assert edit.removed.strip() == ""
    gone = remove(after, ["hooks"])
    assert json.loads(gone.apply(after)) == before
    if before:
        assert gone.apply(after) == text


@given(st.lists(values, max_size=4), layouts, values)
def test_an_item_joins_in_front_and_any_item_can_go(before: list[Any], indent: int | str | None, value: Any) -> None:
    text = json.dumps({"a": {"b": before}}, indent=indent)
    after = insert_item(text, ["a", "b"], value).apply(text)
    assert json.loads(after) == {"a": {"b": [value, *before]}}
    for index in range(len(before) + 1):
        rest = [value, *before]
        del rest[index]
        assert json.loads(remove(after, ["a", "b", index]).apply(after)) == {"a": {"b": rest}}


def test_what_is_inserted_is_laid_out_as_the_rest() -> None:
    text = '{\r\n\t"a": 1\r\n}\r\n'
    assert insert_member(text, [], "b", [1, 2]).apply(text) == '{\r\n\t"b": [1, 2],\r\n\t"a": 1\r\n}\r\n'
    assert insert_member("{}\n", [], "b", {"c": 1, "d": []}).apply("{}\n") == (
        '{\n  "b": {\n    "c": 1,\n    "d": []\n  }\n}\n'
    )


def test_of_two_members_of_one_name_the_last_one_is_meant_as_for_every_reader() -> None:
    text = '{"a": {"x": 1}, "a": {"y": 2}}'
    assert json.loads(insert_member(text, ["a"], "z", 3).apply(text)) == {"a": {"z": 3, "y": 2}}


def test_an_edit_is_shown_without_anything_of_the_file_around_it() -> None:
    text = '{"env": {"KEY": "sk-secret"}, "last": "sk-secret"}'
    edit = insert_member(text, [], "hooks", [])
    lines = shown(text, edit)
    assert lines == ["@@ line 1 @@", '+  "hooks": [],']
    assert shown("a\nbc\n", Edit(2, "b", ""))[1:] == ["-b"]


@pytest.mark.parametrize("text", ['{"a":[]}', '{ "a" : [ ] }', '\n{"a":\n[\n]\n}\n'])
def test_odd_layouts_are_understood(text: str) -> None:
    after = insert_item(text, ["a"], 1).apply(text)
    assert json.loads(after) == {"a": [1]}
    assert json.loads(remove(after, ["a"]).apply(after)) == {}
