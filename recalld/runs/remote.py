"""`recalld watch --remote` and `recalld backfill --remote`: documents of this machine, sent to a fleet's door."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import structlog

from memory.documents.imports import imports_path, remember_import
from memory.http.whole_files import create_whole
from memory.status.condition_texts import counted, text_of
from memory.status.processes import Pulses
from producers.reconciler import Indexes
from producers.remote.door_client import DoorClient
from producers.remote.queue import RemoteQueue
from producers.run import run_producers
from recalld.invocation import Invocation
from recalld.terminal_text import printable_json, printable_name
from schemas.conditions import Condition, ConditionCode, Param
from schemas.documents import DocumentKey, Lane
from schemas.errors import BrokerUnavailable, RecalldError, UserError, backoff
from schemas.ports import Event
from schemas.settings import Settings

log = structlog.get_logger(__name__)

#: Tries in a row of a backfill while the door is away, the seconds between them doubled from the first to the second.
_TRIES, _PAUSE_SECONDS = 6, (1.0, 30.0)


class _LoggedConditions:
    """`ConditionReporter` without a broker: the beginning and the end of each condition are logged."""

    def __init__(self) -> None:
        self._open = set[tuple[str, ConditionCode, str]]()

    def report(self, code: ConditionCode, *, agent: str = "*", subject: str = "", **params: Param) -> None:
        if (agent, code, subject) not in self._open:
            self._open.add((agent, code, subject))
            log.warning(code.value, agent=agent, text=text_of(Condition(code, subject, params=params)))

    def resolve(self, *codes: ConditionCode, agent: str = "*", subject: str = "") -> None:
        for code in codes:
            if (agent, code, subject) in self._open:
                self._open.remove((agent, code, subject))
                log.info(f"{code.value}_is_over", agent=agent, subject=subject)

    def replace(self, codes: Collection[ConditionCode], conditions: Sequence[Condition], *, agent: str) -> None:
        present = {(agent, condition.code, condition.subject) for condition in conditions}
        for name, code, subject in self._open - present:
            if name == agent and code in codes:
                self.resolve(code, agent=agent, subject=subject)
        for condition in conditions:
            self.report(condition.code, agent=agent, subject=condition.subject, **condition.params)


class _NoInbox:
    """`EventInbox` of a process without a broker: events come by the spool."""

    def put(self, event: Event) -> None:
        raise BrokerUnavailable(f"the event {event.kind} belongs into the spool")

    def take(self, timeout_seconds: float) -> Event | None: ...

    def ask(self, event: Event, timeout_seconds: float) -> bool:  # noqa: ARG002 - as above
        return False

    def answer(self, event: Event) -> None: ...


def watch_remote(settings: Settings, stop: threading.Event, *, on_ready: Callable[[], None], pulses: Pulses) -> None:
    """Send the changed documents of all agents to the fleet until `stop` is set."""
    client = DoorClient(settings, machine_id(settings.home))
    reporter = _LoggedConditions()
    with closing(RemoteQueue(settings, client, reporter)) as queue:
        for agent in settings.agents:
            name = client.agent(agent.id)
            target = f"agent {name}" if name is not None else "the first agent of the access token"
            click.echo(f"sends {agent.id} to {client.url} ({target})", err=True)
        try:
            for agent in settings.agents[:1]:
                client.extents(agent.id, [DocumentKey("memory", "MEMORY.md")])
        except RecalldError as error:
            click.echo(f"{error}; changes are sent once it takes them", err=True)
        indexes = Indexes(indexed=queue.indexed)
        run_producers(settings, queue, _NoInbox(), reporter, stop, indexes, on_ready=on_ready, pulses=pulses)


def send_backfill(
    invocation: Invocation, paths: Sequence[Path], *, as_json: bool, dry_run: bool, batch_api: bool, **chosen: Any
) -> int:
    """Send the transcripts below some paths, `chosen` as by `find_transcripts`. Return the exit code."""
    from recalld.runs.backfill import documents_of, find_transcripts
    from recalld.runs.status import size

    if batch_api:
        raise UserError("--batch-api: the fleet decides how it embeds; leave it out", exit_code=2)
    selection = find_transcripts(paths, **chosen)
    settings, agent = invocation.settings, invocation.the_agent()
    _, stats, problems, _ = documents_of(settings, agent, selection)
    problems = [*selection.problems, *problems]
    for problem in problems:
        click.echo(f"recalld: {printable_name(problem)}", err=True)
    client = DoorClient(settings, machine_id(settings.home))
    if not dry_run:
        for folder in selection.folders:
            remember_import(imports_path(settings.home, agent.id), folder)
    failed: dict[str, str] = {}
    with closing(RemoteQueue(settings, client, _LoggedConditions())) as queue:
        with closing(queue.indexed(agent)) as ledger:
            indexed = {key: file.stat for key in stats if (file := ledger.file(key)) is not None}
        keys = [key for key, stat in stats.items() if key not in indexed or not indexed[key].agrees_with(stat)]
        total = sum(stats[key].size for key in keys)
        plan = f"{agent.id}: {counted(len(keys), 'transcript')} to send ({size(total)} before compression)"
        click.echo(f"{plan}, {len(stats) - len(keys):,} sent already; the fleet pays for their embeddings", err=as_json)
        for number, key in enumerate(keys if not dry_run else (), start=1):
            _send(queue, agent.id, key)
            if number % 100 == 0 or number == len(keys):
                click.echo(f"{number:,} of {counted(len(keys), 'transcript')} sent", err=True)
        with closing(queue.indexed(agent)) as ledger:
            failed = {letter.path: letter.reason for letter in ledger.dead_letters() if letter.key in stats}
    for path, reason in failed.items():
        click.echo(f"recalld: {printable_name(path)}: {reason}", err=True)
    ok = not failed and not problems
    if as_json:
        body = {"ok": ok, "dryRun": dry_run, "agent": agent.id, "transcripts": len(keys), "bytes": total}
        click.echo(printable_json({**body, "failed": failed, "problems": problems}))
    return int(not ok)


def _send(queue: RemoteQueue, agent: str, key: DocumentKey) -> None:
    """Send one transcript; wait a while for a door that is away."""
    for attempt in range(1, _TRIES + 1):
        try:
            queue.mark_changed(agent, [key], lane=Lane.BACKFILL)
        except BrokerUnavailable as error:
            if attempt == _TRIES:
                raise UserError(f"{error}; the same command goes on where this one stopped") from error
            pause = backoff(attempt, first=_PAUSE_SECONDS[0], longest=_PAUSE_SECONDS[1])
            time.sleep(max(error.retry_after or 0.0, pause))
        else:
            return


def machine_id(home: Path) -> str:
    """Return the id of this home's machine for the fleet, made once.

    Raises:
        UserError: the home cannot be written.
    """
    path = home / "machine-id"
    try:
        if not path.exists():
            create_whole(path, secrets.token_hex(8).encode())
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be used ({error}); repair or remove it") from None
