"""`recalld dead`: documents that failed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import NOTED, file_state, left_out, noted
from memory.documents.roots import COMPRESSED
from memory.index.generation_writer import GenerationWriter
from memory.index.generations import Generations
from memory.status.condition_texts import counted, since
from memory.store.dead_letters import EMBEDDING_REFUSED
from memory.store.reader import IndexedFile, StoredChunk, StoreReader
from memory.store.writer import Store
from memory.transcripts.folding import readable
from producers.spool import write_event
from recalld import logs
from recalld.invocation import NOTHING_FOUND, CommandGroup, Invocation, examples, json_option, pass_invocation, to_type
from recalld.terminal_text import fields, print_answer, printable_name, typed_name
from recalld.up.lock import daemon_pid
from recalld.wiring import BrokerSide, closed, open_broker
from schemas.agents import Scope
from schemas.documents import DocumentKey, Lane
from schemas.errors import BrokerUnavailable, UserError
from schemas.ports import Event
from schemas.settings import AgentSettings, Settings
from schemas.status import DeadLetter

if TYPE_CHECKING:
    from memory.store.postgres.directory import FleetDirectory


@click.group("dead", cls=CommandGroup, epilog=examples("recalld dead list", "recalld dead retry --all"))
def dead() -> None:
    """List, show, retry or drop documents that failed.

    A document fails as a whole when it cannot be read; it fails in part when the provider refuses to embed some of
    its lines, which are then found by keywords only. Nothing of this goes away by itself, except by an edit that
    mends it. Every command works with and without a running daemon.
    """
    logs.configure_logs(level=40)


@dead.command("list", epilog=examples("recalld dead list", "recalld dead list --agent main --json"))
@json_option
@pass_invocation
def list_letters(invocation: Invocation, *, as_json: bool) -> None:
    """List the documents that failed, with the reason. Exit code 0 also when there is none."""
    failed = _failed_documents(invocation.settings, invocation.agents(_with_dead_letters))
    lines = (f"{_title(failure)}{_history(failure)}\n    {_reason(failure)}" for failure in failed)
    answer = {"deadLetters": [_body(failure) for failure in failed]}
    print_answer(answer, lines if failed else ["nothing failed"], as_json=as_json)


@dead.command("show", epilog=examples("recalld dead show memory/2026-11-09.md"))
@click.argument("path")
@json_option
@pass_invocation
def show(invocation: Invocation, *, path: str, as_json: bool) -> None:
    """Show one document that failed: its lines, reason and attempts, and its part in the index.

    Leaves with exit code 3 when nothing failed there.
    """
    [failure] = _failures_at(invocation.settings, invocation.agents(_with_dead_letters), [path])
    file = failure.file
    refused = [{**fields(chunk, "start_line", "end_line"), "reason": chunk.refusal} for chunk in failure.refused]
    indexed = file and {"at": file.indexed_at, "size": file.stat.size, "notes": [*map(readable, file.notes)]}
    facts = (f"    {name:<9}{printable_name(text)}" for name, text in _facts(failure))
    lines = chain([f"{_title(failure)}{_history(failure)}"], facts)
    print_answer({**_body(failure), "refused": refused, "indexed": indexed}, lines, as_json=as_json)


def _facts(failure: Failure) -> Iterator[tuple[str, str]]:
    dropped = "its dead letter was dropped" + ("; it is left out until it changes" if failure.left_out else "")
    yield "reason", failure.letter.reason if failure.letter else dropped
    for chunk in failure.refused:
        yield "refused", f"lines {chunk.start_line}-{chunk.end_line}: {chunk.refusal}"
    if failure.file is None:
        yield "indexed", "nothing of it"
        return
    searchable = "all of it by keywords" if failure.refused else "an older version"
    yield "indexed", f"{searchable}, {since(failure.file.indexed_at)} ago"
    yield from (("note", readable(note)) for note in failure.file.notes)


@dead.command("retry", epilog=examples("recalld dead retry memory/2026-11-09.md", "recalld dead retry --all"))
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--all", "retries_all", is_flag=True, help="Retry everything that failed.")
@json_option
@pass_invocation
def retry(invocation: Invocation, *, paths: Sequence[str], retries_all: bool, as_json: bool) -> None:
    """Try documents again: read those that could not be read, ask for the vectors that were refused.

    What fails again is listed again. Leaves with exit code 3 when nothing failed at a PATH; then nothing is retried.
    """
    if bool(paths) == retries_all:
        raise click.UsageError("name what to retry: PATH..., or --all")
    settings, agents = invocation.settings, invocation.agents(_with_dead_letters)
    failed = _failed_documents(settings, agents) if retries_all else _failures_at(settings, agents, paths)
    with open_broker(settings) as broker:
        retries, queued = _retry(settings, failed, broker)
    working = queued and daemon_pid(settings.home) is not None
    retried = [{**_name(failure), "chunks": chunks} for failure, chunks in retries]
    answer = {"retried": retried, "queued": queued, "working": working}
    print_answer(answer, _retry_lines(retries, queued=queued, working=working), as_json=as_json)


def _retry_lines(retries: list[tuple[Failure, int]], *, queued: bool, working: bool) -> Iterator[str]:
    for failure, chunks in retries:
        again = f"{counted(chunks, 'refused chunk')} will be embedded again" if chunks else "will be read again"
        yield f"{_title(failure)}: {again}"
    consequence = "no daemon is running: the next `recalld up` or `recalld index` tries again"
    if queued:
        consequence = "queued: the next worker of this queue tries again"
    if working:
        consequence = "the running daemon tries again now; `recalld dead list` says what failed once more"
    yield to_type(consequence if retries else "nothing failed, so there is nothing to retry")


@dead.command("drop", epilog=examples("recalld dead drop memory/2026-11-09.md"))
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@pass_invocation
def drop(invocation: Invocation, *, paths: Sequence[str], as_json: bool) -> None:
    """Forget that documents failed; refused lines stay found by keywords only.

    A file that could not be read is left out, and `recalld status` says so, until it changes, the index is made anew,
    or `recalld dead retry PATH`. Leaves with exit code 3 when nothing failed at a PATH; then nothing is dropped.
    """
    failed = _failures_at(invocation.settings, invocation.agents(_with_dead_letters), paths)
    dropped = _drop(invocation.settings, failed)
    answer = {"dropped": [_name(failure) | {"leftOut": failure.left_out} for failure in dropped]}
    left_out = {True: "; the file is left out until it changes", False: ""}
    lines = (f"{_title(failure)}: dropped{left_out[failure.left_out]}" for failure in dropped)
    print_answer(answer, lines, as_json=as_json)


def _title(failure: Failure) -> str:
    return f"{click.style(failure.agent.id, bold=True)}: {printable_name(failure.key.path)}"


def _history(failure: Failure) -> str:
    letter = failure.letter
    if letter is None:
        return ""
    first = f", first {since(letter.first_at)} ago" if letter.attempts > 1 else ""
    text = f"  {letter.error_class}, {counted(letter.attempts, 'attempt')}{first}, last {since(letter.last_at)} ago"
    return click.style(text, dim=True)


def _reason(failure: Failure) -> str:
    return printable_name(failure.letter.reason) if failure.letter is not None else ""


def _name(failure: Failure) -> dict[str, Any]:
    return {"agent": failure.agent.id, "source": failure.key.source, "path": failure.key.path}


def _body(failure: Failure) -> dict[str, Any]:
    if failure.letter is None:
        return _name(failure)
    return failure.letter.model_dump(by_alias=True) | {"agent": failure.agent.id}


@dataclass(frozen=True, slots=True)
class Failure:
    """Document that failed. Without `letter` it was dropped, and has refused chunks or is `left_out`."""

    agent: AgentSettings
    key: DocumentKey
    letter: DeadLetter | None
    file: IndexedFile | None = None
    refused: Sequence[StoredChunk] = ()
    left_out: bool = False

    @property
    def is_unread(self) -> bool:
        """Return True if the document itself could not be read, or is left out because of that."""
        return self.left_out or (self.letter is not None and self.letter.error_class != EMBEDDING_REFUSED)


def _failed_documents(settings: Settings, agents: Sequence[AgentSettings]) -> list[Failure]:
    """Return the documents of these agents that have a dead letter, newest first within each agent."""
    failures: list[Failure] = []
    for agent in agents:
        with _readers(settings, agent) as readers:
            failures += [_failure(agent, key, letter, readers) for key, letter in _letters(readers).items()]
    return failures


def _failures_at(settings: Settings, agents: Sequence[AgentSettings], paths: Sequence[str]) -> list[Failure]:
    """Return the failed documents that these paths name: as they are listed, absolute, or from the current folder.

    Raises:
        UserError: nothing failed at one of them (exit code 3), or it is the path of several agents (exit code 2).
    """
    failures: dict[tuple[str, DocumentKey], Failure] = {}
    for path in paths:
        candidates = [failure for agent in agents if (failure := _find(settings, agent, path)) is not None]
        matches = [candidate for candidate in candidates if candidate.letter is not None] or candidates
        if not matches:
            raise UserError(f"nothing failed at {path}; `recalld dead list` says what did", exit_code=NOTHING_FOUND)
        if len(matches) > 1:
            who = " and ".join(failure.agent.id for failure in matches)
            raise UserError(f"{path} failed for the agents {who}: say which one with --agent", exit_code=2)
        failures[matches[0].agent.id, matches[0].key] = matches[0]
    return list(failures.values())


def _find(settings: Settings, agent: AgentSettings, path: str) -> Failure | None:
    """Return the failed document of an agent that a path names; one whose letter was dropped comes last."""
    files = AgentFiles.of(settings, agent)
    # As it is; else as it was shown; else as the file is called whose document it is.
    names = dict.fromkeys((path, typed_name(path), path.removesuffix(COMPRESSED)))
    key_of_path = files.key_of(os.path.abspath(path))  # noqa: PTH100 - no link is followed
    keys = [DocumentKey(source, name) for name in names for source in ("memory", "sessions")]
    keys += [key_of_path] if key_of_path is not None else []
    with _readers(settings, agent) as readers:
        letters, excluded = _letters(readers), {key for reader in readers for key in left_out(reader, files)}
        failures = [_failure(agent, key, letters.get(key), readers) for key in keys]
        failures = [replace(failure, left_out=failure.key in excluded) for failure in failures]
    dropped = (failure for failure in failures if failure.left_out or failure.refused)
    return next((failure for failure in failures if failure.letter is not None), None) or next(dropped, None)


def _with_dead_letters(fleet: FleetDirectory) -> Iterator[str]:
    """Yield the agents of a fleet that have dead letters. A document whose letter was dropped needs --agent."""
    for tenant in fleet.budgets():
        yield from (Scope(tenant, agent).agent_id for agent in sorted(fleet.sums(tenant).dead_letters))


def _letters(readers: Sequence[StoreReader]) -> dict[DocumentKey, DeadLetter]:
    letters: dict[DocumentKey, DeadLetter] = {}
    for letter in (letter for reader in readers for letter in reader.dead_letters()):
        letters.setdefault(letter.key, letter)
    return letters


def _retry(settings: Settings, failed: Sequence[Failure], broker: BrokerSide) -> tuple[list[tuple[Failure, int]], bool]:
    """Let documents be tried again; return how many vectors each asks for, and True if they are queued.

    While the broker is away the next comparison of files and index finds them: at the start of the daemon or of
    `recalld index`.
    """
    retries: list[tuple[Failure, int]] = []
    queued = True
    for agent, failures, stores in _by_agent(settings, failed):
        keys = {failure.key for failure in failures}
        for store in stores:
            states = noted(store)
            if keys & states.keys():
                _note_left_out(store, {key: state for key, state in states.items() if key not in keys})
        # While a generation is built, the same chunks may be refused in both.
        retries += [
            (failure, max([store.retry_dead_letter(failure.key) for store in stores], default=0))
            for failure in failures
        ]
        try:
            unread = [failure.key for failure in failures if failure.is_unread]
            broker.queue.mark_changed(agent.id, unread, lane=Lane.LIVE)
            broker.queue.request_vectors(agent.id)
        except BrokerUnavailable:
            write_event(settings.home, Event(kind="reconcile", agent=agent.id))
            queued = False
    return retries, queued


def _drop(settings: Settings, failed: Sequence[Failure]) -> list[Failure]:
    """Forget that these documents failed; those that could not be read are left out until they change.

    Return them as they are from now on.
    """
    dropped: list[Failure] = []
    for agent, failures, stores in _by_agent(settings, failed):
        files, states = AgentFiles.of(settings, agent), {}
        for failure in failures:
            state = file_state(files, failure.key) if failure.letter is not None and failure.is_unread else None
            # A document that was changed since its last attempt, or has no file, may be readable now.
            letter = failure.letter
            if letter is not None and state is not None and max(state[1], state[2]) / 1e9 <= letter.last_at:
                states[failure.key] = state
        for store in stores:
            if states:
                _note_left_out(store, {key: noted(store)[key] for key in left_out(store, files)} | states)
            for failure in failures:
                store.drop_dead_letter(failure.key)
        dropped += [
            replace(failure, letter=None, left_out=failure.left_out or failure.key in states) for failure in failures
        ]
    return dropped


def _note_left_out(store: Store, states: Mapping[DocumentKey, list[int]]) -> None:
    store.set_meta({NOTED: json.dumps([[key.source, key.path, state] for key, state in states.items()])})


def _by_agent(
    settings: Settings, failed: Sequence[Failure]
) -> Iterator[tuple[AgentSettings, list[Failure], Sequence[Store]]]:
    """Yield each agent with its failed documents, and its generations opened for writing."""
    for agent in {failure.agent.id: failure.agent for failure in failed}.values():
        with closing(GenerationWriter.at(settings, agent.id)) as writer:
            yield agent, [failure for failure in failed if failure.agent.id == agent.id], writer.open_existing()


def _failure(
    agent: AgentSettings, key: DocumentKey, letter: DeadLetter | None, readers: Sequence[StoreReader]
) -> Failure:
    # A name that is not UTF-8 is listed escaped; no store holds it.
    file = next((file for reader in readers if (file := reader.file(key)) is not None), None)
    refused = next((rows for reader in readers if (rows := reader.refused_chunks(key))), ())
    return Failure(agent, key, letter, file, refused)


@contextmanager
def _readers(settings: Settings, agent: AgentSettings) -> Iterator[list[StoreReader]]:
    """Open the agent's generations, the one under construction first."""
    generations = Generations.of(settings, agent.id)
    names = [name for name in (generations.next(), generations.current()) if name is not None]
    with ExitStack() as opened:
        readers = [opened.enter_context(closed(generations.open_named(name))) for name in names]
        yield [reader for reader in readers if reader is not None]
