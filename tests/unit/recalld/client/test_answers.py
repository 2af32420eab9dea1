"""The types of answers, against the schemas that the service answers with."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from pydantic import BaseModel

import schemas.search
import schemas.status
from recalld.client import answers, status_answers
from schemas.ports import EndpointCondition


@pytest.mark.parametrize(
    ("typed", "model"),
    [
        (answers.SearchAnswer, schemas.search.SearchAnswer),
        (answers.GetAnswer, schemas.search.GetAnswer),
        (status_answers.Status, schemas.status.Status),
    ],
)
def test_an_answers_keys_are_those_of_its_schema(typed: type, model: type[BaseModel]) -> None:
    _compare(typed, model)


def _compare(typed: Any, model: type[BaseModel]) -> None:
    fields = {field.alias or name: field.annotation for name, field in model.model_fields.items() if not field.exclude}
    hints = get_type_hints(typed)
    assert set(hints) == set(fields), model
    # What is None is left out of an answer.
    assert typed.__optional_keys__ == {name for name, kind in fields.items() if type(None) in get_args(kind)}, model
    for name, kind in fields.items():
        [plain] = [one for one in get_args(kind) if one is not type(None)] if _optional(kind) else [kind]
        _same(hints[name], plain, f"{model.__name__}.{name}")


def _same(hint: Any, kind: Any, where: str) -> None:
    if is_typeddict(hint):
        _compare(hint, kind)
    elif get_origin(hint) is list:
        assert get_origin(kind) is tuple, where
        _same(get_args(hint)[0], get_args(kind)[0], where)
    elif kind is EndpointCondition:
        assert set(get_args(hint)) == {condition.value for condition in EndpointCondition}, where
    elif get_origin(hint) is Literal:
        assert set(get_args(hint)) == set(get_args(kind)), where
    else:
        assert hint == kind, where


def _optional(kind: Any) -> bool:
    return get_origin(kind) in (typing.Union, types.UnionType) and type(None) in get_args(kind)
