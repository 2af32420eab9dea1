"""Documents that failed: found, retried and dropped by a user. Needs no daemon."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import NOTED, file_state, left_out, noted
from memory.documents.roots import COMPRESSED
from memory.index.generation_writer import GenerationWriter
from memory.store.dead_letters import EMBEDDING_REFUSED
from memory.store.reader import DeadLetterRow, IndexedFile, RefusedChunk, StoreReader
from memory.store.writer import Store
from producers.spool import write_event
from recalld.terminal_text import typed_name
from recalld.wiring import BrokerSide, generations_of
from schemas.documents import DocumentKey, Lane
from schemas.errors import BrokerUnavailable, UserError
from schemas.ports import Event
from schemas.settings import AgentSettings, Settings

#: Exit code for a path that nothing failed at.
NOTHING_THERE = 3

#: Paths that a misspelt one may have meant.
_MOST_SUGGESTIONS = 3


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


def retry(settings: Settings, failed: Sequence[Failed], broker: BrokerSide) -> tuple[list[tuple[Failed, int]], bool]:
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


def drop(settings: Settings, failed: Sequence[Failed]) -> list[Failed]:
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
    writer = GenerationWriter.at(settings, agent.id)
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
