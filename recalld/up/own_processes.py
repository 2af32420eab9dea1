"""Command line of another Python with our code, which never loads modules from the current folder.

`python -m` looks for every module in the current folder first, which may be a workspace that strangers write into:
a `redis.py` there would be run. `-P` leaves that out (https://docs.python.org/3/using/cmdline.html#cmdoption-P).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

#: The folder of our packages: of the environment where we are installed, or a checkout.
_OUR_FOLDER = Path(__file__).resolve().parents[2]


def own_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of ours with this Python; in a checkout it needs `own_environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def own_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the place of our packages, where Python would not look by itself.

    A checkout is found through the current folder only; the folder of an installation, named like that, would come
    before Python's own modules.
    """
    found = {name: value for name, value in environment.items() if value or name != "PYTHONPATH"}
    if Path(sysconfig.get_path("purelib")).resolve() != _OUR_FOLDER:
        named = [name for name in found.get("PYTHONPATH", "").split(os.pathsep) if name]
        found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(_OUR_FOLDER), *named]))
    return found
