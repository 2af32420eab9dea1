"""Pictures of the documentation, made from the sample: the page, and a terminal.

    python -m tests.pictures docs/pictures

Needs an installed `chromium`. The terminal is an SVG of the real output of commands, the page a PNG.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

from tests.browsing import chromium
from tests.daemon import REPOSITORY, Daemon
from tests.waiting import wait_until

COLUMNS = 100

#: Lines of a terminal that its picture shows.
COMMANDS = ('recalld search "who finds slow disks" -n 2', "recalld search 备用电源在哪里 -n 1", "recalld status")
_MOST_LINES = 34

_SIZE = {"width": 1180, "height": 820}


def printed(daemon: Daemon, command: str) -> str:
    """Return the output of a command on a terminal of `COLUMNS`, with its colours."""
    name, *_ = command.split()
    words = command.removeprefix(name).strip()
    line = " ".join([sys.executable, "-m", name, *daemon.options(), words])
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    with subprocess.Popen(line, shell=True, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        output = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            output += piece
        process.wait()
    os.close(leader)
    return output.decode("utf-8", "replace").replace("\r\n", "\n")


def terminal(daemon: Daemon, folder: Path) -> None:
    """Write the picture of a terminal in which `COMMANDS` were typed."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    lines: list[str] = []
    for command in COMMANDS:
        lines += [f"\x1b[1m$ {command}\x1b[0m", *printed(daemon, command).rstrip().split("\n"), ""]
    for line in lines[:_MOST_LINES]:
        console.print(
            Text.from_ansi(line.replace(str(daemon.workspace), "~/notes").replace(str(daemon.home), "~/home"))
        )
    svg = console.export_svg(title="recalld")
    # Nothing is loaded from elsewhere: the fonts of the reader's own machine.
    svg = re.sub(r"@font-face\s*\{[^}]*\}", "", svg)
    (folder / "terminal.svg").write_text(svg, "utf-8")


def page(daemon: Daemon, folder: Path) -> None:
    """Write the picture of the page as it opens."""
    with chromium() as browser:
        view = browser.new_page(viewport=_SIZE, color_scheme="light")
        view.goto(f"http://127.0.0.1:{daemon.port()}/")
        view.wait_for_selector('#connection[data-kind="ok"]')
        for loaded in ("#agents .facts", "#latest .documents li", "button.day"):
            view.locator(loaded).first.wait_for()
        view.screenshot(path=str(folder / "page.png"))


def main(folder: Path) -> None:
    """Write all pictures into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as place:
        workspace = Path(place) / "workspace"
        shutil.copytree(REPOSITORY / "deploy" / "sample-workspace", workspace)
        with Daemon(Path(place) / "home", workspace, provider="local") as daemon:
            wait_until(lambda: daemon.status()["ok"], timeout=120)
            terminal(daemon, folder)
            page(daemon, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
