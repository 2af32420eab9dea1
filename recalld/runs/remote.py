"""`recalld watch --remote` and `recalld backfill --remote`: documents of this machine, sent to a fleet's door."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import click
import structlog

from memory.documents.imports import imports_path, remember_import
from memory.http.whole_files import create_whole
from memory.status.condition_texts import counted, text_of
from memory.status.processes import Pulses
from memory.status.run_files import REMOTE_STATE_PATH, this_process, write_derived
from producers.reconciler import Indexes
from producers.remote.door_client import DoorClient
from producers.remote.queue import RemoteQueue
from producers.run import run_producers
from recalld.invocation import Invocation
from recalld.terminal_text import printable_json, printable_name, reading
from schemas.conditions import Condition, ConditionCode, Param
from schemas.documents import DocumentKey, Lane
from schemas.errors import BrokerUnavailable, RecalldError, UserError, backoff
from schemas.ports import Event
from schemas.settings import Settings

log = structlog.get_logger(__name__)

#: Tries in a row of a backfill while the door is away, the seconds between them doubled from the first to the second.
_TRIES, _PAUSE_SECONDS = 6, (1.0, 30.0)


class _LoggedConditions:
    """`ConditionReporter` without a broker: the beginning and the end of each condition are logged. Thread-safe.

    With a `home`, `recalld status` reads the open ones from a file there.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._path = home / REMOTE_STATE_PATH if home is not None else None
        self._open: dict[tuple[str, ConditionCode, str], Condition] = {}
        self._lock = threading.Lock()

    def report(self, code: ConditionCode, *, agent: str = "*", subject: str = "", **params: Param) -> None:
        with self._lock:
            former = self._open.get((agent, code, subject))
            since = time.time() if former is None else former.since
            self._open[agent, code, subject] = condition = Condition(code, subject, since, params)
            if former is None:
                log.warning(code.value, agent=agent, text=text_of(condition))
            if former != condition:
                self._write()

    def resolve(self, *codes: ConditionCode, agent: str = "*", subject: str = "") -> None:
        for code in codes:
            with self._lock:
                if self._open.pop((agent, code, subject), None) is not None:
                    log.info(f"{code.value}_is_over", agent=agent, subject=subject)
                    self._write()

    def _write(self) -> None:
        conditions = [(agent, condition.body()) for (agent, *_), condition in self._open.items()]
        with suppress(OSError):  # the log has them
            if self._path is not None:
                write_derived(self._path, {**this_process(), "conditions": conditions})

    def replace(self, codes: Collection[ConditionCode], conditions: Sequence[Condition], *, agent: str) -> None:
        present = {(agent, condition.code, condition.subject) for condition in conditions}
        with self._lock:
            over = [key for key in self._open.keys() - present if key[0] == agent and key[1] in codes]
        for _, code, subject in over:
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
    client = DoorClient(settings, machine_id(settings.home), stop=stop)
    reporter = _LoggedConditions(settings.home)
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
    """Send the transcripts below some paths, `chosen` as by `find_transcripts`. Return the exit code.

    With `as_json` standard output gets exactly one object, also after a failure.
    """
    outcome: dict[str, Any] = {"ok": False, "dryRun": dry_run, "error": None}
    try:
        if batch_api:
            raise UserError("--batch-api: the fleet decides how it embeds; leave it out", exit_code=2)
        outcome |= _backfill(invocation, paths, dry_run=dry_run, as_json=as_json, **chosen)
        outcome["ok"] = not outcome["failed"] and not outcome["problems"]
    except RecalldError as error:
        outcome["error"] = str(error)
        raise
    finally:
        if as_json:
            click.echo(printable_json(outcome))
    return int(not outcome["ok"])


def _backfill(
    invocation: Invocation, paths: Sequence[Path], *, dry_run: bool, as_json: bool, **chosen: Any
) -> dict[str, Any]:
    from recalld.runs.backfill import documents_of
    from recalld.runs.selection import find_transcripts
    from recalld.runs.status import size

    settings, agent = invocation.settings, invocation.the_agent()
    selection = find_transcripts(paths, home=settings.home, **chosen)
    _, stats, problems, _ = documents_of(settings, agent, selection)
    problems = [*selection.problems, *problems]
    for problem in problems:
        click.echo(f"recalld: {printable_name(problem)}", err=True)
    client = DoorClient(settings, machine_id(settings.home))
    if not dry_run:
        for folder in selection.folders:
            remember_import(imports_path(settings.home, agent.id), folder)
    with closing(RemoteQueue(settings, client, _LoggedConditions())) as queue:
        with closing(queue.indexed(agent)) as ledger:
            sent = {key: file.stat for key in stats if (file := ledger.file(key)) is not None}
        keys = [key for key, stat in stats.items() if key not in sent or not sent[key].agrees_with(stat)]
        total, count = sum(stats[key].size for key in keys), counted(len(keys), "transcript")
        sent_already = f"{len(stats) - len(keys):,} sent already"
        parts = [f"{count} to send ({size(total)} before compression)", sent_already, selection.left_out_sentence]
        sentence = ", ".join(filter(None, parts))
        click.echo(f"{agent.id}: {sentence}; the fleet pays for their embeddings", err=as_json)
        for key in reading(keys, unit="transcripts") if not dry_run else ():
            _send(queue, agent.id, key)
        with closing(queue.indexed(agent)) as ledger:
            changing = [] if dry_run else [key.path for key in keys if ledger.file(key) is None]
            failed = dict.fromkeys(changing, "it changes while it is read; run the same command later")
            failed |= {letter.path: letter.reason for letter in ledger.dead_letters() if letter.key in stats}
    for path, reason in failed.items():
        click.echo(f"recalld: {printable_name(path)}: {reason}", err=True)
    if not dry_run:
        click.echo(f"{len(keys) - len(failed):,} of {count} sent", err=as_json)
    facts = {"agent": agent.id, "transcripts": len(keys), "bytes": total, "leftOutBy": selection.left_out}
    return {**facts, "failed": failed, "problems": problems}


def _send(queue: RemoteQueue, agent: str, key: DocumentKey) -> None:
    """Send one transcript; wait a while for a door that is away."""
    for attempt in range(1, _TRIES + 1):
        try:
            return queue.mark_changed(agent, [key], lane=Lane.BACKFILL)
        except BrokerUnavailable as error:
            pause = backoff(attempt, first=_PAUSE_SECONDS[0], longest=_PAUSE_SECONDS[1])
            away, pause = error, max(error.retry_after or 0.0, pause)
        if attempt < _TRIES:
            time.sleep(pause)
    raise UserError(f"{away}; the same command goes on where this one stopped") from away


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
