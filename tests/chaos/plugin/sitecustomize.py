"""Makes a process of recalld die at a named point. No part of recalld: only tests put this folder on PYTHONPATH.

Python imports a module of this name at its start. `CHAOS_PLAN` names a folder, see `tests.chaos.kill_points`:

    plan.json     the functions that are kill points, and constants that are other ones while this is tested
    armed/NAME    somebody is to die at this point: the process that passes it when empty, else the process named
    hits/NAME.PID they died
    clock         seconds by which the clock is wrong
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

#: Seconds between two looks at how wrong the clock is.
_LOOK_SECONDS = 0.05

#: Which calls of a function count, by their arguments.
_WHEN: dict[str, Callable[[tuple[Any, ...]], bool]] = {
    "": lambda _: True,
    "CURRENT": lambda arguments: "CURRENT" in arguments,
    # A slice of a transcript that ends before where the one in the index does.
    "shorter": lambda arguments: (
        arguments[-1].position is not None
        and arguments[-1].position.offset < getattr(arguments[-1].expected, "offset", 0)
    ),
}


class _Changing(importlib.abc.MetaPathFinder):
    """Changes modules as soon as they are loaded, before anybody has taken a name from them."""

    def __init__(self, folder: Path) -> None:
        plan = json.loads((folder / "plan.json").read_text("utf-8"))
        self._folder = folder
        self._points: dict[str, list[dict[str, str]]] = {}
        self._constants: dict[str, dict[str, float]] = {}
        for point in plan["points"]:
            self._points.setdefault(point["module"], []).append(point)
        for name, value in plan["constants"].items():
            module, _, constant = name.partition(":")
            self._constants.setdefault(module, {})[constant] = value

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._points and fullname not in self._constants:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            for name, value in self._constants.get(fullname, {}).items():
                getattr(module, name)  # a constant that is gone is a mistake in the test
                setattr(module, name, value)
            for point in self._points.get(fullname, []):
                self._wrap(module, point)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec

    def _wrap(self, module: ModuleType, point: dict[str, str]) -> None:
        owner: Any = module
        *above, name = point["function"].split(".")
        for part in above:
            owner = getattr(owner, part)
        function = getattr(owner, name)
        counts = _WHEN[point["when"]]

        @functools.wraps(function)
        def passing(*arguments: Any, **options: Any) -> Any:
            if point["moment"] == "before" and counts(arguments):
                self._pass(point)
            result = function(*arguments, **options)
            if point["moment"] == "after" and counts(arguments):
                self._pass(point)
            return result

        setattr(owner, name, passing)

    def _pass(self, point: dict[str, str]) -> None:
        """Die, or let somebody die, if that is wanted here; one process takes the order."""
        if point["process"] not in sys.argv:
            return
        order = self._folder / "armed" / point["name"]
        taken = self._folder / "hits" / f"{point['name']}.{os.getpid()}"
        try:
            # Read before it is taken: the test clears away what was.
            victim = order.read_text("ascii")
            order.rename(taken)
        except FileNotFoundError:
            return
        os.kill(int(victim or os.getpid()), signal.SIGKILL)


def _let_the_clock_be_wrong(file: Path) -> None:
    right, looked, wrong = time.time, -1.0, 0.0

    def clock() -> float:
        nonlocal looked, wrong
        if time.monotonic() - looked > _LOOK_SECONDS:
            looked = time.monotonic()
            wrong = float(file.read_text("ascii")) if file.exists() else 0.0
        return right() + wrong

    time.time = clock


if "CHAOS_PLAN" in os.environ:
    _folder = Path(os.environ["CHAOS_PLAN"])
    sys.meta_path.insert(0, _Changing(_folder))
    _let_the_clock_be_wrong(_folder / "clock")
