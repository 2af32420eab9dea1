"""Messages on invalid requests, without the names of Python's types that pydantic's own messages have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Kind of a pydantic problem -> words, with placeholders for the entries of its `ctx`.
_WORDS: Mapping[str, str] = {
    "missing": "is missing",
    "string_type": "must be a text",
    "string_unicode": "must be a text, and holds half of a character",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be an object",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "too_long": "must have at most {max_length} entries",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
}

#: Characters of an unknown name, and number of such names, that an answer repeats.
_SHOWN_CHARACTERS = 60
_SHOWN_NAMES = 5


def problem_words(problems: Sequence[Mapping[str, Any]], *, below: int = 0) -> str:
    """Return the first invalid field and its fault: `maxResults must be at least 1`.

    Args:
        problems: those of `ValidationError.errors()`, at least one.
        below: number of parts of each `loc` before the field.
    """
    place = _place(problems[0], below)
    words = dict.fromkeys(_words(problem) for problem in problems if _place(problem, below) == place)
    # There is one problem for each type that the field may have.
    alike = [text for text in words if text.startswith("must be ")]
    first = next(iter(words))
    sentence = " or ".join([first, *(text.removeprefix("must be ") for text in alike[1:])]) if first in alike else first
    return f"{place} {sentence}" if place else sentence


def shown_names(names: Iterable[str]) -> str:
    """Return names from a request, shortened for a message."""
    several = list(names)
    first_names = ", ".join(shown_name(name) for name in several[:_SHOWN_NAMES])
    more = len(several) - _SHOWN_NAMES
    return f"{first_names} and {more} more" if more > 0 else first_names


def shown_name(name: str) -> str:
    """Return a name from a request, shortened for a message."""
    return name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}..."


def _place(problem: Mapping[str, Any], below: int) -> str:
    parts = list(problem.get("loc", ()))[below:]
    # Below a field only places in a list are kept: pydantic also adds the type that it tried.
    return ".".join(str(part) for number, part in enumerate(parts) if number == 0 or isinstance(part, int))


def _words(problem: Mapping[str, Any]) -> str:
    words = _WORDS.get(str(problem.get("type")))
    if words is None:
        return f"is not valid: {problem.get('msg', 'it cannot be read')}"
    return words.format_map(problem.get("ctx") or {})
