"""Every regular expression of the product takes time linear in the text that it meets, whatever the text is.

The patterns are found in the loaded modules and in their sources, so that a new one needs no listing.
"""

from __future__ import annotations

import ast
import gc
import importlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import BuiltinMethodType, FunctionType
from typing import Any, NamedTuple

import pytest
import regex

from tests.hostile_texts import Maker, is_superlinear, makers, seconds

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("schemas", "memory", "producers", "workers", "recalld")

#: Parts with many patterns, and the rest: their tests run side by side.
PARTS = (
    *(f"memory.redaction.{module}" for module in ("assignments", "credentials", "tokens", "values")),
    "memory.redaction",
    "memory.transcripts",
    "memory.search",
    "memory.chunking",
    "memory.context",
    *PACKAGES,
)

#: Parts whose patterns take a minute, with short texts as well.
LONG_PARTS = ("memory.redaction.assignments",)

#: Methods of a pattern, by the one that is tried for them: some go over a whole text.
METHODS = {
    "search": "search",
    "match": "match",
    "fullmatch": "fullmatch",
    **dict.fromkeys(("finditer", "findall", "sub", "subn", "split"), "finditer"),
}

#: Modules that make patterns out of data, and the reason why no text makes these slow.
MADE_OF_DATA = {
    "memory.chunking.folding": "a table of letters, without repetition",
    "memory.context.injection": "a trigger, letter by letter",
    "memory.redaction.credentials": "rules that are compiled on demand; redaction/test_laws.py measures them",
    "memory.redaction.tokens": "parts of a pattern that is measured here",
    "memory.redaction.values": "words of the rules, without repetition",
    "memory.redaction.user_patterns": "patterns of the settings, within a budget of time",
    "memory.transcripts.wrappers": "tables of formats, which are measured here",
    "recalld.client.context": "a token of the settings, letter by letter",
    "recalld.hooks.installation": "the name of a program, looked for in the settings of that program",
    "schemas.globs": "globs of the settings, looked for in names of files",
    "schemas.settings.sync": "patterns of the settings, compiled only",
}

#: Characters of texts. The next size is tried if the last one took less than these seconds for each of them.
SIZES, PATIENCE_SECONDS = (16, 32, 64, 1024), 1e-5

#: Characters of the longest of these texts, and of the one text that is tried with each pattern in the end.
SHORT_TEXTS, LONG_TEXTS = (4096, 1 << 18), (16_384, 1 << 20)

#: A text that takes less for each character is cheap: its growth is not measured.
CHEAP_SECONDS = 1e-7

#: Seconds that no step of the allocator takes.
SLOW_SECONDS = 0.1


class Use(NamedTuple):
    """A pattern and the methods that the product calls; without a call by its name, all of them."""

    place: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]


@cache
def sources() -> dict[str, ast.Module]:
    files = (file for package in PACKAGES for file in sorted((REPOSITORY / package).rglob("*.py")))
    named = {file.relative_to(REPOSITORY).with_suffix("").as_posix(): file.read_text("utf-8") for file in files}
    return {name.removesuffix("/__init__").replace("/", "."): ast.parse(text) for name, text in named.items()}


def patterns_in(holder: object, module: str, name: str, seen: set[int]) -> Iterator[tuple[str, str, re.Pattern[Any]]]:
    """Yield the patterns that a value holds, each with the module and the name of its variable or attribute."""
    if isinstance(holder, re.Pattern | regex.Pattern):
        yield module, name, holder
    if id(holder) in seen:
        return
    seen.add(id(holder))
    parts: list[object] = []
    if isinstance(holder, dict):
        parts = [*holder.keys(), *holder.values()]
    elif isinstance(holder, tuple | list | set | frozenset):
        parts = [*holder]
    elif isinstance(holder, partial):
        parts = [holder.func, holder.args, holder.keywords]
    elif isinstance(holder, BuiltinMethodType):
        parts = [holder.__self__]
    elif isinstance(holder, FunctionType):
        parts = [holder.__defaults__, holder.__kwdefaults__]
    for part in parts:
        yield from patterns_in(part, module, name, seen)
    kind = holder if isinstance(holder, type) else type(holder)
    if kind.__module__ in sources():
        fields = {
            field for base in kind.__mro__ for names in ("__slots__", "_fields") for field in vars(base).get(names, ())
        }
        attributes = {field: getattr(holder, field, None) for field in fields} | {**getattr(holder, "__dict__", {})}
        for attribute, part in attributes.items():
            yield from patterns_in(part, kind.__module__, attribute, seen)


@cache
def called_methods() -> dict[tuple[str, str], set[str]]:
    """Return the methods of patterns that each module names, by the variable or attribute before the dot.

    Names that are not private to a module are here for all modules, as those of module "".
    """
    methods: dict[tuple[str, str], set[str]] = defaultdict(set)
    for module, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                name = str(getattr(node.value, "id", getattr(node.value, "attr", "")))
                methods[module if name.startswith("_") else "", name].add(METHODS[node.attr])
    return methods


@cache
def calls_of_re() -> dict[ast.Call, str]:
    """Return the calls in functions that compile a pattern, or find it among the compiled ones, with their modules."""
    calls: dict[ast.Call, str] = {}

    def collect(node: ast.AST, module: str, *, in_function: bool) -> None:
        if (
            in_function
            and isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and getattr(node.func.value, "id", "") in ("re", "regex")
            and node.func.attr in (*METHODS, "compile")
        ):
            calls[node] = module
        in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for below in ast.iter_child_nodes(node):
            collect(below, module, in_function=in_function)

    for module, tree in sources().items():
        collect(tree, module, in_function=False)
    return calls


@cache
def uses() -> tuple[Use, ...]:
    """Return the patterns of the product, each once: those of loaded modules, and constants in calls of `re`."""
    places: dict[re.Pattern[Any], dict[str, set[str]]] = defaultdict(dict)
    seen: set[int] = set()
    for module in sources():
        for variable, content in () if module.endswith("__main__") else vars(importlib.import_module(module)).items():
            for owner, name, pattern in patterns_in(content, module, variable, seen):
                caller = owner if name.startswith("_") else ""
                places[pattern][f"{owner}.{name}"] = called_methods().get((caller, name), set())
    found = [Use(min(named), pattern, frozenset().union(*named.values())) for pattern, named in places.items()]
    for call, module in calls_of_re().items():
        if isinstance(call.args[0], ast.Constant):
            flags = [node.attr for word in call.keywords for node in ast.walk(word) if isinstance(node, ast.Attribute)]
            pattern = re.compile(call.args[0].value, sum(re.RegexFlag[flag] for flag in flags))
            found.append(Use(f"{module}:{call.lineno}", pattern, frozenset({METHODS[call.func.attr]})))
    return tuple(found)


def run_of(pattern: re.Pattern[Any], method: str) -> Callable[[str], object]:
    """Return the function that calls a method of a pattern with a text, and goes over all of its matches."""

    def run(text: str) -> None:
        data: Any = text.encode("utf-8", "surrogatepass") if isinstance(pattern.pattern, bytes) else text
        matches = getattr(pattern, method)(data)
        for _ in matches if method == "finditer" else ():
            pass

    return run


def slow_text(use: Use, longest: int, last: int) -> str:
    """Return the beginning of a text that the pattern is slow with, "" if there is none."""
    slowest: tuple[float, Callable[[str], object], Maker] = 0.0, str, str
    for make in makers(use.pattern):
        for method in use.methods or {*METHODS.values()}:
            run = run_of(use.pattern, method)
            for size in (*SIZES, longest):
                if (spent := seconds(run, make(size))) > PATIENCE_SECONDS * size:
                    break
            # A step of the allocator looks like growth; at four times the size it is over.
            if (
                spent > CHEAP_SECONDS * size
                and is_superlinear(run, make, size)
                and (size < SIZES[3] or spent > SLOW_SECONDS or is_superlinear(run, make, 4 * size, factor=32))
            ):
                return f"{method} {make(60)[:60]!r}"
            slowest = max(slowest, (spent, run, make), key=lambda timed: timed[0])
    _, run, make = slowest
    return f"{last} characters of {make(60)[:60]!r}" if is_superlinear(run, make, last, factor=64) else ""


@pytest.fixture(autouse=True)
def _without_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("part", "sizes"),
    [
        *((part, SHORT_TEXTS) for part in PARTS if part not in LONG_PARTS),
        *(pytest.param(part, LONG_TEXTS, marks=pytest.mark.long) for part in PARTS),
    ],
)
def test_a_pattern_takes_time_linear_in_its_text(part: str, sizes: tuple[int, int]) -> None:
    parts = {use: next(part for part in PARTS if f"{use.place}.".startswith(f"{part}.")) for use in uses()}
    slow = [(use.place, slow_text(use, *sizes)) for use in uses() if parts[use] == part]
    assert [(place, text) for place, text in slow if text] == []


def test_patterns_made_of_data_are_listed() -> None:
    made = {module for call, module in calls_of_re().items() if not isinstance(call.args[0], ast.Constant)}
    assert made == set(MADE_OF_DATA)
