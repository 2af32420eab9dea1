"""`recalld remember`: write a text into today's note, and wait until searches find it."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime
from functools import partial

import click

from memory.context.note_files import append_note
from memory.documents.agent_files import AgentFiles
from memory.redaction import ASKING, redactor_for
from producers.reconciler import AgentComparison
from recalld.invocation import Invocation
from recalld.logs import configure_logs
from recalld.runs.run import Run
from recalld.settings.load import check_workspace
from recalld.terminal_text import printable_json, printable_name, remark
from recalld.up.lock import daemon_pid
from recalld.wiring import AgentIndex, closed, open_broker
from schemas.agents import Scope
from schemas.documents import MEMORY_SOURCE, DocumentKey
from schemas.errors import RecalldError, UserError
from schemas.settings import AgentSettings, Settings

#: Characters that `recalld remember` takes; seconds that it waits for all documents, and at most for its note alone.
MOST_CHARACTERS, _ALL_SECONDS, _NOTE_SECONDS = 20_000, 5.0, 30.0


def run_remember(invocation: Invocation, text: str, *, as_json: bool) -> None:
    """Append a text to the agent's note of today, print its place, and wait. Raise RecalldError if it fails."""
    settings, agent = invocation.settings, invocation.the_agent()
    files, zone = AgentFiles.of(settings, agent), agent.context.zone
    path = f"memory/{datetime.now(zone).astimezone(zone):%Y-%m-%d}.md"
    file = agent.workspace / path
    is_sent = settings.store.url is not None and agent.workspace == Scope.of(agent.id).workspace(settings.home)
    reasons = {
        "its notes come from other machines; run `recalld remember` there": is_sent,
        "its memory is off (enabled, sources)": not agent.enabled or MEMORY_SOURCE not in agent.sources,
        f"the settings leave out {path}": not is_sent and files.key_of(file) is None,
    }
    for reason in (reason for reason, holds in reasons.items() if holds):
        raise UserError(f"agent {agent.id} takes no notes here: {reason}; nothing was written", exit_code=2)
    check_workspace(agent)
    content = redactor_for(agent, MEMORY_SOURCE, budget=ASKING)(text)
    try:
        addition = append_note(agent.workspace, path, f"{content}\n", allowed=path)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}); nothing was remembered") from error
    key = files.resolve(path)
    note = files.read(key).text
    start = note.rfind(addition.strip("\n") or content.partition("\n")[0])
    line = note.count("\n", 0, max(0, start)) + 1
    if not as_json:
        click.echo(f"{'written to' if addition else 'there already:'} {printable_name(str(file))}:{line}")
    if content != text:
        remark("secrets in the text are masked in the note")
    is_found = False
    if settings.fleet.url is not None:
        remark("`recalld watch --remote` sends the note to the fleet, and searches there find it then")
    elif not (is_found := _is_searchable(settings, agent, key, files)):
        remark("the note is written, and searches find it later: `recalld up` or `recalld index` indexes it")
    if as_json:
        answer = {"agent": agent.id, "path": path, "line": line, "file": str(file)}
        click.echo(printable_json({**answer, "written": bool(addition), "found": is_found}, indent=2))


def _is_searchable(settings: Settings, agent: AgentSettings, key: DocumentKey, files: AgentFiles) -> bool:
    """Have a note indexed, and wait. Return True if the answering index has it as it is on the disk."""
    began_at, generations = time.monotonic(), AgentIndex(settings, agent).generations

    def is_found() -> bool:
        with suppress(RecalldError), closed(generations.open_reader()) as reader:
            indexed, stat = reader.file(key) if reader is not None else None, files.stat(key)
            return indexed is not None and stat is not None and indexed.stat.agrees_with(stat)
        return False

    def is_enough(seconds: float = 0.0) -> bool:
        waited_seconds = time.monotonic() - began_at
        return waited_seconds > _NOTE_SECONDS or (waited_seconds > seconds and is_found())

    configure_logs(level=40)
    try:
        if daemon_pid(settings.home) is None:
            with Run(settings, [agent], is_enough=partial(is_enough, _ALL_SECONDS)) as run:
                if run.index().interrupted:
                    raise KeyboardInterrupt
        else:
            with open_broker(settings) as broker:
                AgentComparison(agent.id, live=[key]).enqueue(broker.queue)
            while not is_enough():
                time.sleep(0.05)
    except RecalldError as error:
        remark(printable_name(str(error)))
    return is_found()
