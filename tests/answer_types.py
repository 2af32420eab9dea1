"""Writer of the types of the service's answers for the client, which must not import `schemas`: `make docs`.

python -m tests.answer_types recalld/client/answers.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from keyword import iskeyword
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from schemas.conditions import ConditionCode
from schemas.context import ContextReport, FlushAnswer, PromptAnswer, PruneAnswer
from schemas.search import GetAnswer, SearchAnswer
from schemas.status import Status

_HEAD = '''\
"""Types of the service's answers: dictionaries with known keys, explained by /docs of the service.

Written by `make docs` from `schemas`. Keys that are not required are in an answer only if they are known.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if sys.version_info >= (3, 11):
    from typing import NotRequired
elif TYPE_CHECKING:
    from typing_extensions import NotRequired
'''


def answer_types() -> str:
    """Return the content of answers.py: a TypedDict for each model of an answer, after those that it names."""
    classes: dict[str, str] = {}
    for model in (SearchAnswer, GetAnswer, Status, PromptAnswer, ContextReport, FlushAnswer, PruneAnswer):
        _add_class(model, classes)
    return "\n\n".join([_HEAD, *classes.values()])


def _add_class(model: type, classes: dict[str, str]) -> None:
    keys: dict[str, str] = {}
    for name, kind in _fields(model):
        written = _type_name(kind, classes)
        # The service leaves out what is None.
        keys[name] = f"NotRequired[{written}]" if NoneType in get_args(kind) else written
    classes[model.__name__] = _class(model.__name__, keys)


def _fields(model: type) -> Iterator[tuple[str, Any]]:
    if issubclass(model, BaseModel):
        for name, field in model.model_fields.items():
            if not field.exclude:
                yield field.alias or name, field.annotation
    else:
        for name, kind in get_type_hints(model).items():
            yield to_camel(name), kind


def _class(name: str, keys: dict[str, str]) -> str:
    if not any(map(iskeyword, keys)):
        return f"class {name}(TypedDict):\n" + "".join(f"    {key}: {kind}\n" for key, kind in keys.items())
    # A name in quotes is not looked for when the module is imported.
    quoted = {key: json.dumps(kind) if kind.startswith("NotRequired") else kind for key, kind in keys.items()}
    members = "".join(f'        "{key}": {kind},\n' for key, kind in quoted.items())
    return f'{name} = TypedDict(\n    "{name}",\n    {{\n{members}    }},\n)\n'


def _type_name(kind: Any, classes: dict[str, str]) -> str:
    origin, arguments = get_origin(kind), [one for one in get_args(kind) if one is not NoneType]
    if origin is Literal:
        return f"Literal[{', '.join(json.dumps(value) for value in arguments)}]"
    if origin is tuple:
        return f"list[{_type_name(arguments[0], classes)}]"
    if origin in (dict, Mapping):
        return f"dict[{', '.join(_type_name(one, classes) for one in arguments)}]"
    if origin is not None:  # a union
        return " | ".join(_type_name(one, classes) for one in arguments)
    if kind is ConditionCode:  # more codes may join
        return "str"
    if issubclass(kind, Enum):
        return _type_name(Literal[tuple(one.value for one in kind)], classes)
    if issubclass(kind, BaseModel) or is_dataclass(kind):
        _add_class(kind, classes)
    return str(kind.__name__)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(answer_types(), "utf-8")
