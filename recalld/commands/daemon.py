"""Commands about the `recalld up` of a home: `recalld stop`, `logs` and `service`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import click

from recalld.invocation import NOTHING_FOUND, Invocation, examples, pass_invocation
from recalld.terminal_text import printable, printable_json, printable_name, remark
from recalld.up.log_files import LogEntry, entries, log_names
from schemas.errors import UserError

#: Fields of a log entry that its line begins with, or that say nothing to a person.
_FIRST = frozenset(("timestamp", "process", "event", "level", "pid"))

_COLOURS = {"warning": "yellow", "error": "red", "critical": "red"}


@click.command("stop", epilog=examples("recalld stop"))
@pass_invocation
def stop(invocation: Invocation) -> None:
    """Stop the running `recalld up` in order, and wait until it is stopped.

    What is being indexed is finished first. A second `recalld stop` meanwhile ends it at once. Nothing to stop is no
    error.
    """
    from recalld.up.detached import stop as stop_daemon

    def announce(pid: int) -> None:
        remark(f"stopping process {pid}; what is being indexed is finished first")

    home = printable_name(str(invocation.home_path))
    pid = stop_daemon(invocation.home_path, on_wait=announce)
    if pid is None:
        click.echo(f"nothing to stop: recalld does not run for {home}")
    else:
        click.echo(f"stopped recalld for {home} (process {pid}): watching, indexing, search and the queue")


@click.command("logs", epilog=examples("recalld logs", "recalld logs -f work"))
@click.option("-f", "--follow", is_flag=True, help="Go on with new entries until Ctrl-C.")
@click.option(
    "-n", "--lines", "number", type=click.IntRange(min=0), default=100, metavar="N", help="Entries; 0: all. [100]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.argument("process", required=False, metavar="[PROCESS]")
@pass_invocation
def logs(invocation: Invocation, *, follow: bool, number: int, as_json: bool, process: str | None) -> int:
    """Print the last log entries of all processes, by time, or those of one PROCESS.

    PROCESS is up, watch, work, serve or queue. `work-2` is the second worker; the log of the queue is shown only if it
    is named. Under systemd the messages of `up` are in the journal: `journalctl --user -u recalld`.
    """
    home = invocation.home_path
    known = log_names(home)
    if known and not log_names(home, process):
        raise UserError(f"no process called {process!r} has a log; these have: {', '.join(known)}", exit_code=2)
    if not known and not follow:
        remark(f"there are no logs in {home / 'log'} yet: nothing has run for this home")
        return NOTHING_FOUND
    for entry in entries(home, process, number=number, follow=follow):
        for line in [printable_json(entry.as_json())] if as_json else _lines(entry):
            click.echo(line)
    return 0


def _lines(entry: LogEntry) -> Iterator[str]:
    """Yield a line with time, process, event and fields; texts of several lines come below it."""
    fields = entry.fields
    texts = {name: value if isinstance(value, str) else printable_json(value) for name, value in fields.items()}
    event, level = printable_name(texts.get("event", "")), texts.get("level", "")
    at = datetime.fromtimestamp(entry.at).astimezone().strftime("%Y-%m-%d %H:%M:%S") if entry.at else " " * 19
    short = {name: text for name, text in texts.items() if name not in _FIRST and "\n" not in text}
    rest = click.style("".join(f"  {name}={printable_name(text)}" for name, text in short.items()), dim=True)
    yield f"{click.style(at, dim=True)}  {entry.process:<7} {click.style(event, fg=_COLOURS.get(level))}{rest}"
    for text in (text for name, text in texts.items() if "\n" in text and name != "event"):
        yield from (f"    {line}" for line in printable(text).splitlines())
