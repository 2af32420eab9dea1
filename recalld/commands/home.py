"""Commands about a home: page, `recalld up` without a terminal, service, logs, folders, copies and removal."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memory.status.condition_texts import counted
from recalld.invocation import (
    NOT_OK,
    NOTHING_FOUND,
    CommandGroup,
    Invocation,
    examples,
    json_option,
    pass_invocation,
    to_type,
    workspace_option,
)
from recalld.terminal_text import print_answer, printable, printable_json, printable_name, remark
from schemas.errors import UserError

if TYPE_CHECKING:
    from recalld.up.log_files import LogEntry
    from recalld.up.units import Service

#: Fields of a log entry that its line begins with, or that say nothing to a person.
_FIRST = frozenset(("timestamp", "process", "event", "level", "pid"))

#: States of a service that runs, of systemd and launchd.
_RUNNING = frozenset(("active", "activating", "running"))

#: Relative to the home folder: leads a browser to the page. Every user of a machine sees the arguments of programs, so
#: a browser is started with the path of this file, which its owner alone can read, and not with the link.
_REDIRECT_FILE = Path("run") / "open.html"

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

    home = invocation.home_path
    pid = stop_daemon(home, on_wait=announce)
    if pid is None:
        click.echo(f"nothing to stop: recalld does not run for {printable_name(str(home))}")
        return
    click.echo(
        f"stopped recalld for {printable_name(str(home))} (process {pid}): watching, indexing, search, the queue"
    )
    if _service_of(home) is not None:
        remark("its service starts it again at the next login or boot; `recalld service remove` ends that")


@click.command("logs", epilog=examples("recalld logs", "recalld logs -f work", "recalld logs --json -n 0 watch"))
@click.option("-f", "--follow", is_flag=True, help="Go on with new entries until Ctrl-C.")
@click.option(
    "-n", "--lines", "number", type=click.IntRange(min=0), default=100, metavar="N", help="Entries; 0: all. [100]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.argument("process", required=False, metavar="[PROCESS]")
@pass_invocation
def logs(invocation: Invocation, *, follow: bool, number: int, as_json: bool, process: str | None) -> int:
    """Print the last log entries of all processes, by time, or those of one PROCESS.

    PROCESS is up, watch, work or serve; `work-2` is the second worker. Under systemd the messages of `up` are in the
    journal: `journalctl --user -u recalld`.
    """
    from recalld.up.log_files import entries, log_names

    home = invocation.home_path
    all_names = log_names(home)
    if all_names and not log_names(home, process):
        raise UserError(f"no process called {process!r} has a log; these have: {', '.join(all_names)}", exit_code=2)
    if not all_names and not follow:
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


@click.group("service", cls=CommandGroup, epilog=examples("recalld service install", "recalld service status"))
def service() -> None:
    """Let the system start `recalld up` at login or boot, and again after a failure.

    Linux: a user unit of systemd, ~/.config/systemd/user/recalld.service. macOS: an agent of launchd,
    ~/Library/LaunchAgents/recalld.plist.
    """


@service.command("install", epilog=examples("recalld service install", "recalld service install --workspace ~/notes"))
@workspace_option
@pass_invocation
def install(invocation: Invocation) -> None:
    """Install the service and start it. Do this again after an upgrade: it restarts.

    The service runs this home and these settings. It sees no variables of this shell but PATH.
    """
    from recalld.runs.estimate import confirm_workspace
    from recalld.settings.load import check_workspace, variables_of_settings
    from recalld.up.lock import daemon_pid
    from recalld.up.supervisor import lasting_command
    from recalld.up.units import ENVIRONMENT_FILE, service_here

    for agent in invocation.agents():
        check_workspace(agent)
    home, place = invocation.home_path, service_here()
    pid = daemon_pid(home)
    if pid is not None and not (place.home() == home and place.state() in _RUNNING):
        stop_first = "`recalld stop`, then `recalld service install`"
        raise UserError(f"recalld already runs for {home}, started by hand (process {pid}): type {stop_first}")
    confirm_workspace(invocation)
    invocation.remember()
    words = [*lasting_command(), "up", "--home", str(home), *invocation.config_option()]
    place.install(words, home=home)
    click.echo(f"installed and started: {place.file} runs {shlex.join(words)}")
    click.echo(place.start_sentence())
    if variables := variables_of_settings():
        target = "the settings" if place.is_launchd else f"{ENVIRONMENT_FILE} (NAME=value, a line each, mode 0600)"
        remark(f"the service does not see {', '.join(variables)} of this shell: put them into {target}")


@service.command("remove", epilog=examples("recalld service remove"))
@pass_invocation
def remove(invocation: Invocation) -> None:
    """Stop the service and remove its file. Nothing to remove is no error."""
    if (place := _service_of(invocation.home_path)) is not None:
        place.remove()
    click.echo(f"stopped and removed: {place.file}" if place else f"no service runs {invocation.home_path}")


@service.command("status", epilog=examples("recalld service status", "recalld service status --json"))
@json_option
@pass_invocation
def service_status(invocation: Invocation, *, as_json: bool) -> int:
    """Print whether the service is installed, runs and starts at boot. Exit code 4 while it does not run."""
    place = _service_of(invocation.home_path)
    state = place.state() if place is not None else "not installed"
    answer = {"running": state in _RUNNING, "state": state, "file": str(place.file) if place is not None else None}
    hint = place.start_sentence() if place is not None else to_type("`recalld service install` installs it")
    print_answer({**answer, "start": hint}, [f"{state}: {answer['file']}" if place else state, hint], as_json=as_json)
    return 0 if state in _RUNNING else NOT_OK


def _service_of(home: Path) -> Service | None:
    """Return the installed service that runs this home; None for none, or another program's file."""
    from recalld.up.units import service_here

    with suppress(UserError):
        return place if (place := service_here()).home() == home else None
    return None


@click.command("where", epilog=examples("recalld where", "recalld where --json"))
@json_option
@pass_invocation
def where(invocation: Invocation, *, as_json: bool) -> None:
    """Print where settings file, home, indexes, cache, queue, logs and tokens are, with sizes."""
    from recalld.runs.status import size as size_in_words
    from recalld.settings.home_files import size_of
    from recalld.settings.load import config_to_write, find_config, indexes_folder

    home = invocation.home_path
    config = find_config(invocation.config, home=home)
    place = _service_of(home)
    paths = {
        "settings": config or config_to_write(invocation.config, home=invocation.home),
        "home": home,
        "indexes": indexes_folder(home, config),
        "cache": home / "cache",
        "broker": home / "broker",
        "logs": home / "log",
        "tokens": home / "run" / "tokens",
        **({"service": place.file} if place is not None else {}),
    }
    sizes = {name: size_of(path) for name, path in paths.items()}
    answer = {name: {"path": str(path), "bytes": sizes[name]} for name, path in paths.items()}
    lines = (
        f"{name:<9} {printable_name(str(path))}  ({'not there' if size is None else size_in_words(size)})"
        for (name, path), size in zip(paths.items(), sizes.values(), strict=True)
    )
    print_answer(answer, lines, as_json=as_json)


@click.command("uninstall", epilog=examples("recalld uninstall", "recalld uninstall --keep-home --yes"))
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option("--keep-home", is_flag=True, help="Leave home and settings: indexes, paid embeddings, tokens.")
@pass_invocation
def uninstall(invocation: Invocation, *, yes: bool, keep_home: bool) -> None:
    """Remove recalld for this home: connections, hooks, service, and the home with its settings.

    Shows it and asks once. Stops recalld first. Notes, transcripts and other files that recalld did not make stay and
    are named. The program itself stays; the last line says how to remove it.
    """
    from recalld.connect import plan_removal
    from recalld.doctor.removal import plan_home, plan_hooks, program_sentence
    from recalld.up.detached import stop as stop_daemon
    from recalld.up.lock import has_processes

    home = invocation.home_path
    place, connections = _service_of(home), plan_removal(home)
    plans = [connections, plan_hooks(home, connections), *([] if keep_home else [plan_home(invocation)])]
    lines = [f"- {place.file}: the service"] if place is not None else []
    lines += [change.line for plan in plans for change in plan.changes]
    for line in (*lines, *(f"  {sentence}" for plan in plans for sentence in plan.remarks)):
        click.echo(printable_name(line))
    if not lines:
        click.echo(f"nothing to remove for {home}; {program_sentence()}")
        return
    if not yes and not sys.stdin.isatty():
        raise UserError("nothing was removed: say --yes to remove what is shown", exit_code=2)
    if not yes and not click.confirm("Remove this?", default=False):
        raise UserError("nothing was removed")
    if place is not None:
        place.remove()
    stop_daemon(home, on_wait=lambda pid: remark(f"stopping process {pid}"))
    if has_processes(home):
        raise UserError(f"processes of {home} that were started on their own still run; stop them first")
    for sentence in connections.carry_out(home):
        click.echo(printable_name(sentence.partition(";")[0]))  # the copy that it names goes as well
    for change in (change for plan in plans[1:] for change in plan.changes):
        click.echo(printable_name(change.apply()))
    click.echo(program_sentence())


@click.command("open", epilog=examples("recalld open", "recalld open --print"))
@click.option("--print", "only_prints", is_flag=True, help="Print the link, and start no browser.")
@pass_invocation
def open(invocation: Invocation, *, only_prints: bool) -> None:  # noqa: A001 - commands are found by their names
    """Open the page in the browser. With several agents it shows the memory of all, without a token.

    Prints the link as well. It opens the page once, within a minute. The page stays open until you close its tab, 30
    days at most.
    """
    from recalld.client import AccessRefused, Client, RequestRefused, ServiceUnavailable

    try:
        client = Client.at_home(invocation.home_path)
        link = client.page_link() if client is not None else None
    except AccessRefused:
        raise UserError("the page opens for the user who runs recalld: run `recalld open` as that user") from None
    except (RequestRefused, ServiceUnavailable) as error:
        raise UserError(str(error)) from None
    if link is None:
        raise UserError("recalld does not run, so there is no page: start it with `recalld up`")
    click.echo(link)
    if not only_prints and not _is_opened(link, invocation.home_path / _REDIRECT_FILE):
        remark("no browser could be started here: open the link in one on this machine, within a minute")


def _is_opened(link: str, file: Path) -> bool:
    """Start the browser of the desktop with a file that leads to the link. Return False if there is none."""
    import webbrowser

    from memory.http.whole_files import write_whole
    from recalld.settings.load import has_display

    if not (sys.platform == "darwin" or has_display()):
        return False
    try:
        write_whole(file, f'<meta http-equiv="refresh" content="0; url={escape(link)}">\n'.encode(), synced=False)
    except OSError:
        return False
    return webbrowser.open(file.as_uri())


@click.command("export", epilog=examples("recalld export memory.sqlite", "recalld export --agent main memory.sqlite"))
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE.")
@pass_invocation
def export(invocation: Invocation, *, file: Path, force: bool) -> None:
    """Write an agent's whole memory to one SQLite FILE, while everything runs.

    It holds texts, vectors and conversations whose files are gone. `recalld import` reads it. Of a fleet, name the
    agent as TENANT/AGENT.
    """
    from recalld.runs.imports import export_file

    agent = invocation.the_agent()
    if file.exists() and not force:
        raise UserError(f"{file} is there already; --force replaces it", exit_code=2)
    export_file(invocation.settings, agent.id, file)
    click.echo(f"wrote {printable_name(str(file))}")


@click.command("import", epilog=examples("recalld import memory.sqlite", "recalld import --agent main memory.sqlite"))
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@workspace_option
@pass_invocation
def import_(invocation: Invocation, *, file: Path) -> None:
    """Read a FILE of `recalld export` into an agent's memory. Nothing is embedded, and nothing is paid.

    Copy the notes into the workspace first: a note that is not there counts as deleted, and is left out. Conversations
    need no files. Documents that the memory has stay as they are. Of a fleet, name the agent as TENANT/AGENT.
    """
    from recalld.runs.imports import import_file
    from recalld.settings.load import check_workspace
    from recalld.wiring import AgentIndex

    agent, settings = invocation.the_agent(), invocation.settings
    if is_here := agent in settings.agents:
        check_workspace(agent)
    imported, left_out = import_file(file, settings, agent, AgentIndex(settings, agent).fingerprint)
    invocation.remember()
    click.echo(f"imported {counted(imported, 'document')} into agent {agent.id}")
    if left_out:
        absent = f"left out {counted(len(left_out), 'document')} whose files are not here, such as {min(left_out).path}"
        here, in_fleet = f"copy notes into {agent.workspace}, then import again", "machines have to send notes"
        remark(f"{absent}; {here if is_here else in_fleet}")


@click.command("backup", epilog=examples("recalld backup /backup/recalld-monday"))
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@pass_invocation
def backup(invocation: Invocation, *, folder: Path) -> None:
    """Copy the home to a new FOLDER, while everything runs: indexes, paid embeddings, records and settings.

    Tokens and keys are left out, as well as queue, logs and local models.
    """
    from recalld.runs.home_backup import back_up

    is_whole = back_up(invocation.settings, invocation.loaded.config, folder.absolute())
    click.echo(f"wrote {printable_name(str(folder))}")
    if not is_whole:
        remark("the copy of the settings is without the lines that hold keys; give them again after a restore")


@click.command("restore", epilog=examples("recalld restore /backup/recalld-monday --home ~/restored"))
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@pass_invocation
def restore(invocation: Invocation, *, folder: Path) -> None:
    """Make a home of the FOLDER that `recalld backup` wrote. The home must be empty.

    Give the settings their keys again, then start `recalld up`: tokens are made anew, and nothing is embedded again.
    """
    from recalld.runs.home_backup import restore as restore_home

    restore_home(folder.absolute(), invocation.home_path, invocation.config)
    click.echo(f"restored {printable_name(str(invocation.home_path))}; `recalld up` starts it")
