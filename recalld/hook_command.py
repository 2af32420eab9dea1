"""The command line that another program is to call, wherever it is called from."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from memory.own_processes import own_command
from recalld import configuration
from recalld.invocation import Invocation


def hook_command(invocation: Invocation, program: str) -> str:
    """`recalld hook <program>` with absolute paths, and with the options without which it would mean another home."""
    words = [*_this_program(), "hook", program]
    home = invocation.home_path
    # The program that calls us may have another environment than this shell.
    if home != configuration.find_home(environment={}):
        words += ["--home", str(home)]
    config = configuration.find_config(invocation.config, home=home)
    if config is not None and config != configuration.find_config(home=home, environment={}):
        words += ["--config", str(config)]
    if invocation.agent is not None:
        words += ["--agent", invocation.agent]
    return shlex.join(words)


def _this_program() -> list[str]:
    for script in (Path(sys.argv[0]), Path(sys.executable).with_name("recalld")):
        if script.name == "recalld" and script.is_file():
            return [str(script.absolute())]
    return own_command("recalld")
