"""Documents that failed: found, retried and dropped by a user. Needs no daemon."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches

from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import NOTED, file_state, left_out, noted
from memory.documents.roots import COMPRESSED
from memory.index.generation_writer import GenerationWriter
from memory.store.dead_letters import EMBEDDING_REFUSED
from memory.store.reader import DeadLetterRow, IndexedFile, RefusedChunk, StoreReader
from memory.store.writer import Store
from producers.spool import write_event
from recalld.terminal_text import typed_name
from recalld.wiring import BrokerSide, closed, generations_of
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
    refused: Sequence[RefusedChunk] = ()
    left_out: bool = False

    @property
    def is_unread(self) -> bool:
        """Return True if the document itself could not be read, or is left out because of that."""
        return self.left_out or (self.letter is not None and self.letter.error_class != EMBEDDING_REFUSED)


def failed_documents(settings: Settings, agents: Sequence[AgentSettings]) -> list[Failed]:
    """Return the documents of these agents that have a dead letter, newest first within each agent."""
    found: list[Failed] = []
    for agent in agents:
        with _readers(settings, agent) as readers:
            letters: dict[DocumentKey, DeadLetterRow] = {}
            for letter in (letter for reader in readers for letter in reader.dead_letters()):
                letters.setdefault(letter.key, letter)
            found += [_failed(agent, key, letter, readers) for key, letter in letters.items()]
    return found


def chosen(settings: Settings, agents: Sequence[AgentSettings], paths: Sequence[str]) -> list[Failed]:
    """Return the failed documents that these paths name: as they are listed, absolute, or from the current folder.

    Raises:
        UserError: nothing failed at one of them (exit code 3), or it is the path of several agents (exit code 2).
    """
    failed = failed_documents(settings, agents)
    named = [_named(settings, agents, failed, path) for path in paths]
    return list({(one.agent.id, one.key): one for one in named}.values())


def retry(settings: Settings, failed: Sequence[Failed], broker: BrokerSide) -> tuple[list[tuple[Failed, int]], bool]:
    """Let documents be tried again; return how many vectors each asks for, and True if they are queued.

    While the broker is away the next comparison of files and index finds them: at the start of the daemon or of
    `recalld index`.
    """
    asked: list[tuple[Failed, int]] = []
    queued = True
    for agent, mine, stores in _by_agent(settings, failed):
        keys = {one.key for one in mine}
        for store in stores:
            left = noted(store)
            if keys & left.keys():
                _note(store, {key: state for key, state in left.items() if key not in keys})
        # While a generation is built, the same chunks may be refused in both.
        asked += [(one, max([store.retry_dead_letter(one.key) for store in stores], default=0)) for one in mine]
        try:
            broker.queue.mark_changed(agent.id, [one.key for one in mine if one.is_unread], lane=Lane.LIVE)
            broker.queue.request_vectors(agent.id)
        except BrokerUnavailable:
            write_event(settings.home, Event(kind="reconcile", agent=agent.id))
            queued = False
    return asked, queued


def drop(settings: Settings, failed: Sequence[Failed]) -> list[Failed]:
    """Forget that these documents failed; those that could not be read are left out until they change.

    Return them as they are from now on.
    """
    dropped: list[Failed] = []
    for agent, mine, stores in _by_agent(settings, failed):
        files, out = AgentFiles.of(settings, agent), {}
        for one in mine:
            state = file_state(files, one.key) if one.letter is not None and one.is_unread else None
            # A document that was changed since its last attempt, or has no file, may be readable now.
            if one.letter is not None and state is not None and max(state[1], state[2]) / 1e9 <= one.letter.last_at:
                out[one.key] = state
        for store in stores:
            if out:
                _note(store, {key: noted(store)[key] for key in left_out(store, files)} | out)
            for one in mine:
                store.drop_dead_letter(one.key)
        dropped += [replace(one, letter=None, left_out=one.left_out or one.key in out) for one in mine]
    return dropped


def _note(store: Store, left: Mapping[DocumentKey, list[int]]) -> None:
    store.set_meta({NOTED: json.dumps([[key.source, key.path, state] for key, state in left.items()])})


def _by_agent(
    settings: Settings, failed: Sequence[Failed]
) -> Iterator[tuple[AgentSettings, list[Failed], Sequence[Store]]]:
    """Yield each agent with its failed documents, and its generations opened for writing."""
    for agent in {one.agent.id: one.agent for one in failed}.values():
        writer = GenerationWriter.at(settings, agent.id)
        try:
            yield agent, [one for one in failed if one.agent.id == agent.id], writer.open_existing()
        finally:
            writer.close()


def _named(settings: Settings, agents: Sequence[AgentSettings], failed: Sequence[Failed], path: str) -> Failed:
    # As it is; else as it was shown; else as the file is called whose document it is.
    for name in dict.fromkeys((path, typed_name(path), path.removesuffix(COMPRESSED))):
        matches = _matches(settings, agents, failed, name)
        if len(matches) > 1:
            who = " and ".join(one.agent.id for one in matches)
            raise UserError(f"{path} failed for the agents {who}: say which one with --agent", exit_code=2)
        if matches:
            return matches[0]
    known = [one.key.path for one in failed]
    near = [name for name in known if path in name] or get_close_matches(path, known, _MOST_SUGGESTIONS, 0.4)
    meant = f"did you mean {' or '.join(near[:_MOST_SUGGESTIONS])}?" if near else "`recalld dead list` says what did"
    raise UserError(
        f"nothing failed at {path}" + (f"; {meant}" if failed else ", nor anywhere else"), exit_code=NOTHING_THERE
    )


def _matches(settings: Settings, agents: Sequence[AgentSettings], failed: Sequence[Failed], path: str) -> list[Failed]:
    """Return what a path names: documents with a letter, else dropped ones with refused chunks, or left out."""
    matches, dropped = [], []
    for agent in agents:
        files = AgentFiles.of(settings, agent)
        own = files.key_of(os.path.abspath(path))  # noqa: PTH100 - no link is followed
        keys = [DocumentKey("memory", path), DocumentKey("sessions", path), *([own] if own is not None else [])]
        matches += [one for one in failed if one.agent.id == agent.id and one.key in keys]
        with _readers(settings, agent) as readers:
            out = {key for reader in readers for key in left_out(reader, files)}
            found = [replace(_failed(agent, key, None, readers), left_out=key in out) for key in dict.fromkeys(keys)]
        dropped += [one for one in found if one.left_out or one.refused][:1]
    return matches or dropped


def _failed(
    agent: AgentSettings, key: DocumentKey, letter: DeadLetterRow | None, readers: Sequence[StoreReader]
) -> Failed:
    # A name that is not UTF-8 is listed escaped; no store holds it.
    file = next((file for reader in readers if (file := reader.file(key)) is not None), None)
    refused = next((rows for reader in readers if (rows := reader.refused_chunks(key))), ())
    return Failed(agent, key, letter, file, refused)


@contextmanager
def _readers(settings: Settings, agent: AgentSettings) -> Iterator[list[StoreReader]]:
    """Open the agent's generations, the one under construction first."""
    generations = generations_of(settings, agent)
    names = [name for name in (generations.next(), generations.current()) if name is not None]
    with ExitStack() as opened:
        readers = [opened.enter_context(closed(generations.open_named(name))) for name in names]
        yield [reader for reader in readers if reader is not None]
