"""`recalld dead`: documents that failed, found, retried and dropped by a user. Needs no daemon."""

from __future__ import annotations

import difflib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import click

from memory.documents.agent_files import AgentFiles
from memory.documents.ignored_documents import NOTED, file_state, left_out, noted
from memory.documents.session_roots import COMPRESSED
from memory.index.generation_writer import GenerationWriter
from memory.status.condition_texts import duration
from memory.store.dead_letters import EMBEDDING_REFUSED
from memory.store.options import StoreOptions
from memory.store.reader import DeadLetterRow, IndexedFile, RefusedChunk, StoreReader
from memory.store.writer import Store
from memory.wire_forms import agent_dead_letter
from producers.spool import write_event
from recalld.invocation import Invocation, pass_invocation, to_type
from recalld.local.fallback import print_json
from recalld.terminal_text import printable_name, typed_name
from recalld.up.lock import daemon_pid
from recalld.wiring import BrokerSide, generations_of, open_broker
from schemas.documents import DocumentKey, Lane
from schemas.errors import BrokerUnavailable, UserError
from schemas.ports import Event
from schemas.settings import AgentSettings, Settings

#: Exit code for a path that nothing failed at.
NOTHING_THERE = 3

#: Paths that a misspelt one may have meant.
_MOST_SUGGESTIONS = 3


_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_paths = click.argument("paths", nargs=-1, required=True, metavar="PATH...")


@dataclass(frozen=True, slots=True)
class Failed:
    """Document that failed. Without `letter` it was dropped, and has refused chunks or is `left_out`."""

    agent: AgentSettings
    key: DocumentKey
    letter: DeadLetterRow | None
    file: IndexedFile | None = None
    refused: tuple[RefusedChunk, ...] = field(default=())
    left_out: bool = False


def failed_documents(settings: Settings, agents: Sequence[AgentSettings]) -> list[Failed]:
    """Return the documents of these agents that have a dead letter, newest first within each agent."""
    found: list[Failed] = []
    for agent in agents:
        with _readers(settings, agent) as readers:
            letters: dict[DocumentKey, DeadLetterRow] = {}
            for reader in readers:
                for letter in reader.dead_letters():
                    letters.setdefault(letter.key, letter)
            found += [_failed(agent, key, letter, readers) for key, letter in letters.items()]
    return found


def chosen(settings: Settings, agents: Sequence[AgentSettings], paths: Sequence[str]) -> list[Failed]:
    """Return the failed documents that these paths name: as they are listed, absolute, or from the current folder.

    Raises:
        UserError: nothing failed at one of them (exit code 3), or it is the path of several agents (exit code 2).
    """
    failed = failed_documents(settings, agents)
    return list(
        {(one.agent.id, one.key): one for path in paths for one in [_named(settings, agents, failed, path)]}.values()
    )


def ask_again(
    settings: Settings, failed: Sequence[Failed], broker: BrokerSide
) -> tuple[list[tuple[Failed, int]], bool]:
    """Let documents be tried again; return how many vectors each asks for, and True if they are queued.

    While the broker is away the next comparison of files and index finds them: at the start of the daemon or of
    `recalld index`.
    """
    asked: list[tuple[Failed, int]] = []
    queued = True
    for agent in {one.agent.id: one.agent for one in failed}.values():
        mine = [one for one in failed if one.agent.id == agent.id]
        with _stores(settings, agent) as stores:
            # While a generation is built, the same chunks may be refused in both.
            asked += [(one, max([store.retry_dead_letter(one.key) for store in stores], default=0)) for one in mine]
            for one in mine:
                for store in stores:
                    _take_in(store, one.key)
        queued = _tell(settings, agent, mine, broker) and queued
    return asked, queued


def forget(settings: Settings, failed: Sequence[Failed]) -> list[Failed]:
    """Forget that these documents failed; those that could not be read are left out until they change.

    Return them as they are from now on.
    """
    out: set[tuple[str, DocumentKey]] = set()
    for agent in {one.agent.id: one.agent for one in failed}.values():
        mine = [one for one in failed if one.agent.id == agent.id]
        unread = {one.key: one.letter.last_at for one in mine if one.letter is not None and _is_unread(one)}
        files = AgentFiles.of(settings, agent)
        with _stores(settings, agent) as stores:
            for store in stores:
                out |= {(agent.id, key) for key in _leave_out(store, files, unread)}
                for one in mine:
                    store.drop_dead_letter(one.key)
    return [replace(one, letter=None, left_out=one.left_out or (one.agent.id, one.key) in out) for one in failed]


def _tell(settings: Settings, agent: AgentSettings, failed: Sequence[Failed], broker: BrokerSide) -> bool:
    unread = [one.key for one in failed if _is_unread(one)]
    try:
        broker.queue.mark_changed(agent.id, unread, lane=Lane.LIVE)
        broker.queue.request_vectors(agent.id)
    except BrokerUnavailable:
        write_event(settings.home, Event(kind="reconcile", agent=agent.id))
        return False
    return True


def _is_unread(one: Failed) -> bool:
    """Return True if the document itself could not be read, or is left out because of that."""
    return one.left_out or (one.letter is not None and one.letter.error_class != EMBEDDING_REFUSED)


def _named(settings: Settings, agents: Sequence[AgentSettings], failed: Sequence[Failed], path: str) -> Failed:
    # As it is; else as it was shown; else as the file is called whose document it is.
    for name in dict.fromkeys((path, typed_name(path), path.removesuffix(COMPRESSED))):
        matches = _matches(settings, agents, failed, name)
        if len(matches) > 1:
            who = " and ".join(one.agent.id for one in matches)
            raise UserError(f"{path} failed for the agents {who}: say which one with --agent", exit_code=2)
        if matches:
            return matches[0]
    raise UserError(_nothing_at(path, failed), exit_code=NOTHING_THERE)


def _matches(settings: Settings, agents: Sequence[AgentSettings], failed: Sequence[Failed], path: str) -> list[Failed]:
    absolute = os.path.abspath(path)  # noqa: PTH100 - no link is followed
    keys = {agent.id: AgentFiles.of(settings, agent).key_of(absolute) for agent in agents}
    matches = [one for one in failed if path == one.key.path or one.key == keys[one.agent.id]]
    return matches or [one for agent in agents for one in _dropped(settings, agent, path, keys[agent.id])]


def _dropped(settings: Settings, agent: AgentSettings, path: str, key: DocumentKey | None) -> list[Failed]:
    """Return a document without a letter that has refused chunks or is left out, if the path names one."""
    files = AgentFiles.of(settings, agent)
    named = [DocumentKey("memory", path), DocumentKey("sessions", path), key]
    with _readers(settings, agent) as readers:
        for candidate in named:
            if candidate is None:
                continue
            is_out = any(candidate in left_out(reader, files) for reader in readers)
            if is_out or any(reader.refused_chunks(candidate) for reader in readers):
                return [replace(_failed(agent, candidate, None, readers), left_out=is_out)]
    return []


def _failed(
    agent: AgentSettings, key: DocumentKey, letter: DeadLetterRow | None, readers: Sequence[StoreReader]
) -> Failed:
    # A name that is not UTF-8 is listed escaped; no store holds it.
    file = next((file for reader in readers if (file := reader.file(key)) is not None), None)
    refused = next((tuple(rows) for reader in readers if (rows := reader.refused_chunks(key))), ())
    return Failed(agent, key, letter, file, refused)


def _nothing_at(path: str, failed: Sequence[Failed]) -> str:
    if not failed:
        return f"nothing failed at {path}, nor anywhere else"
    known = [one.key.path for one in failed]
    near = [name for name in known if path in name] or difflib.get_close_matches(path, known, _MOST_SUGGESTIONS, 0.4)
    meant = f"did you mean {' or '.join(near[:_MOST_SUGGESTIONS])}?" if near else "`recalld dead list` says what did"
    return f"nothing failed at {path}; {meant}"


@contextmanager
def _readers(settings: Settings, agent: AgentSettings) -> Iterator[list[StoreReader]]:
    """Open the agent's generations, the one under construction first."""
    generations = generations_of(settings, agent)
    with ExitStack() as opened:
        readers = []
        for name in (generations.next(), generations.current()):
            reader = generations.open_named(name) if name is not None else None
            if reader is not None:
                opened.callback(reader.close)
                readers.append(reader)
        yield readers


@contextmanager
def _stores(settings: Settings, agent: AgentSettings) -> Iterator[list[Store]]:
    writer = GenerationWriter(settings.indexes_path / agent.id, StoreOptions.of(settings.store))
    try:
        yield writer.open_existing()
    finally:
        writer.close()


def _leave_out(store: Store, files: AgentFiles, tried: Mapping[DocumentKey, float]) -> set[DocumentKey]:
    """Leave documents out that were tried in vain at these Unix times; return those that are left out from now on.

    A document that was changed since, or has no file, is not: it may be readable now.
    """
    states = {key: state for key in tried if (state := file_state(files, key)) is not None}
    unchanged = {key: state for key, state in states.items() if max(state[1], state[2]) / 1e9 <= tried[key]}
    if unchanged:
        before = {key: state for key, state in noted(store).items() if state == file_state(files, key)}
        _note(store, before | unchanged)
    return set(unchanged)


def _take_in(store: Store, key: DocumentKey) -> None:
    """Leave a document out no longer."""
    left = noted(store)
    if left.pop(key, None) is not None:
        _note(store, left)


def _note(store: Store, left: Mapping[DocumentKey, list[int]]) -> None:
    store.set_meta({NOTED: json.dumps([[key.source, key.path, state] for key, state in left.items()])})


@click.group("dead")
def dead() -> None:
    """List, show, retry or drop documents that failed.

    A document fails as a whole when it cannot be read; it fails in part when the provider refuses to embed some of
    its lines, which are then found by keywords only. Nothing of this goes away by itself, except by an edit that
    mends it. Every command works with and without a running daemon.
    """
    from recalld.logs import configure_logs

    configure_logs(level=40)


@dead.command("list")
@_json_option
@pass_invocation
def list_letters(invocation: Invocation, *, as_json: bool) -> None:
    """List the documents that failed, with the reason. Exit code 0 also when there is none."""
    failed = failed_documents(invocation.settings, invocation.agents())
    if as_json:
        print_json({"deadLetters": [_body(one) for one in failed]})
        return
    if not failed:
        click.echo("nothing failed")
    for one in failed:
        click.echo(f"{_title(one)}{_history(one)}")
        click.echo(f"    {printable_name(one.letter.reason) if one.letter else ''}")


@dead.command("show")
@click.argument("path")
@_json_option
@pass_invocation
def show(invocation: Invocation, *, path: str, as_json: bool) -> None:
    """Say all that is known about one document that failed: which lines, why, how often, and what is indexed of it.

    Leaves with exit code 3 when nothing failed there.
    """
    [one] = chosen(invocation.settings, invocation.agents(), [path])
    if as_json:
        print_json(_body(one) | {"refused": _refused(one), "indexed": _indexed(one)})
        return
    click.echo(f"{_title(one)}{_history(one)}")
    dropped = "its dead letter was dropped" + ("; it is left out until it changes" if one.left_out else "")
    click.echo(f"    reason   {printable_name(one.letter.reason) if one.letter else dropped}")
    for chunk in one.refused:
        click.echo(f"    refused  lines {chunk.start_line}-{chunk.end_line}: {printable_name(chunk.reason)}")
    if one.file is None:
        click.echo("    indexed  nothing of it")
    else:
        what = "all of it by keywords" if one.refused else "an older version"
        click.echo(f"    indexed  {what}, {_when(one.file.indexed_at)}")
        for note in one.file.notes:
            click.echo(f"    note     {printable_name(note)}")


@dead.command("retry")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--all", "everything", is_flag=True, help="Retry everything that failed.")
@_json_option
@pass_invocation
def retry(invocation: Invocation, *, paths: Sequence[str], everything: bool, as_json: bool) -> None:
    """Try documents again: read those that could not be read, ask for the vectors that were refused.

    What fails again is listed again. Leaves with exit code 3 when nothing failed at a PATH; then nothing is retried.
    """
    if bool(paths) == everything:
        raise click.UsageError("name what to retry: PATH..., or --all")
    settings, agents = invocation.settings, invocation.agents()
    failed = failed_documents(settings, agents) if everything else chosen(settings, agents, paths)
    with open_broker(settings) as broker:
        asked, queued = ask_again(settings, failed, broker)
    working = queued and daemon_pid(settings.home) is not None
    if as_json:
        retried = [{**_name(one), "chunks": chunks} for one, chunks in asked]
        print_json({"retried": retried, "queued": queued, "working": working})
        return
    for one, chunks in asked:
        click.echo(f"{_title(one)}: {_again(chunks)}")
    click.echo(to_type(_what_happens(len(asked), queued=queued, working=working)))


@dead.command("drop")
@_paths
@_json_option
@pass_invocation
def drop(invocation: Invocation, *, paths: Sequence[str], as_json: bool) -> None:
    """Forget that documents failed; refused lines stay found by keywords only.

    A file that could not be read is left out, and `recalld status` says so, until it changes, the index is made anew,
    or `recalld dead retry PATH`. Leaves with exit code 3 when nothing failed at a PATH; then nothing is dropped.
    """
    failed = chosen(invocation.settings, invocation.agents(), paths)
    dropped = forget(invocation.settings, failed)
    if as_json:
        print_json({"dropped": [_name(one) | {"leftOut": one.left_out} for one in dropped]})
        return
    for one in dropped:
        click.echo(f"{_title(one)}: dropped{'; the file is left out until it changes' if one.left_out else ''}")


def _what_happens(count: int, *, queued: bool, working: bool) -> str:
    if not count:
        return "nothing failed, so there is nothing to retry"
    if working:
        return "the running daemon tries again now; `recalld dead list` says what failed once more"
    if queued:
        return "queued: whichever worker of this queue runs next tries again"
    return "no daemon is running: the next `recalld up` or `recalld index` tries again"


def _again(chunks: int) -> str:
    if chunks:
        return f"{chunks} refused chunk{'' if chunks == 1 else 's'} will be embedded again"
    return "will be read again"


def _title(one: Failed) -> str:
    return f"{click.style(one.agent.id, bold=True)}: {printable_name(one.key.path)}"


def _history(one: Failed) -> str:
    letter = one.letter
    if letter is None:
        return ""
    attempts = f"{letter.attempts} attempt{'' if letter.attempts == 1 else 's'}"
    since = f", first {_when(letter.first_at)}" if letter.attempts > 1 else ""
    return click.style(f"  {letter.error_class}, {attempts}{since}, last {_when(letter.last_at)}", dim=True)


def _when(at: float) -> str:
    return f"{duration(max(0.0, time.time() - at))} ago"


def _name(one: Failed) -> dict[str, Any]:
    return {"agent": one.agent.id, "source": one.key.source, "path": one.key.path}


def _body(one: Failed) -> dict[str, Any]:
    if one.letter is None:
        return _name(one)
    return agent_dead_letter(one.agent.id, one.letter).model_dump(by_alias=True)


def _refused(one: Failed) -> list[dict[str, Any]]:
    return [{"startLine": c.start_line, "endLine": c.end_line, "reason": c.reason} for c in one.refused]


def _indexed(one: Failed) -> dict[str, Any] | None:
    file = one.file
    return {"at": file.indexed_at, "size": file.stat.size, "notes": list(file.notes)} if file is not None else None
