"""Queue of a machine whose documents a fleet indexes: a changed document is sent to the fleet's door.

The ledger of sent documents is an index of the home without chunks, `sent/<host>/<agent>.sqlite`. Comparisons and the
tailing of transcripts read it in place of the agent's index. It knows up to where the door has each transcript, so that
only appended lines are sent, and an interrupted upload goes on.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from memory.documents.agent_files import AgentFiles, DocumentGone
from memory.documents.comparison import forgets
from memory.documents.content import UNFINISHED_NS, WRITTEN_MEANWHILE_NS, OpenFile, OpenTranscript, lines_after
from memory.redaction import redactor_for
from memory.redaction.redactor import redaction_facts
from memory.store.errors import OtherFormat, StoreBusy, StoreCorrupt, StoreFull
from memory.store.options import StoreOptions
from memory.store.reader import TranscriptPosition
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.writer import SqliteStore, create_generation
from memory.store.writer import DocumentDelete, DocumentTouch, DocumentWrite, WriteOutcome
from memory.transcripts.lines import RawLine, packed
from producers.remote.door_client import DocumentUnwanted, DoorClient, PartMisplaced, SenderRefused
from producers.remote.parts import (
    START,
    LinesChanged,
    Part,
    Piece,
    Place,
    note_pieces,
    parts_of,
    transcript_pieces,
)
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, FileStat, Lane
from schemas.errors import BrokerUnavailable, OutOfMemory, Permanent, Transient
from schemas.ingest import Extent, running_digest
from schemas.ports import ConditionReporter
from schemas.settings import AgentSettings, Settings

log = structlog.get_logger(__name__)

#: Locks of documents: no two threads send one document at a time.
_LOCKS = 64

#: A ledger has no vectors and is searched by nothing.
_OPTIONS = StoreOptions(vector_enabled=False)


#: Extent of a document that the door does not have.
NOTHING = Extent()


@dataclass(frozen=True, slots=True)
class _Sent:
    """Content of a transcript that the door has. `is_new`: it is the beginning of a version that is not whole yet."""

    place: Place = START
    extent: Extent = NOTHING
    is_new: bool = True

    def position(self) -> TranscriptPosition:
        place = self.place
        state = json.dumps([*astuple(place)[3:], *astuple(self.extent), self.is_new])
        return TranscriptPosition(place.offset, place.lines, place.digest, state)

    @classmethod
    def at(cls, position: TranscriptPosition) -> _Sent:
        last_length, last_digest, tail, size, digest, is_new = json.loads(position.state)
        place = Place(position.offset, position.lines, position.digest, last_length, last_digest, tail)
        return cls(place, Extent(size, digest), is_new)


class RemoteQueue:
    """A `ProducerQueue` that sends documents to the door of a fleet. Thread-safe.

    Documents are sent as they are now. A document that cannot be read, or that the door never takes, gets a dead letter
    in the ledger and does not hold up others. Raises the errors of `DoorClient` and of the ledgers.
    """

    def __init__(self, settings: Settings, client: DoorClient, reporter: ConditionReporter) -> None:
        self._client, self._reporter = client, reporter
        self._agents = {agent.id: agent for agent in settings.agents if agent.enabled}
        self._files = {name: AgentFiles.of(settings, agent) for name, agent in self._agents.items()}
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        folder = settings.home / "sent" / client.host
        self._paths = {name: folder / f"{name}.sqlite" for name in self._agents}
        self._ledgers = {name: self._ledger(agent, self._paths[name]) for name, agent in self._agents.items()}

    def indexed(self, agent: AgentSettings) -> SqliteReader:
        """Open the ledger of an agent for reading (`Indexes.indexed`)."""
        return SqliteReader(self._paths[agent.id], _OPTIONS)

    def mark_changed(self, agent: str, documents: Sequence[DocumentKey], *, lane: Lane) -> None:
        """Send documents, at most `MOST_DOCUMENTS`, as they are now, and remove those that are gone.

        Raises:
            BrokerUnavailable, SenderRefused, Transient: some were not sent; the caller keeps the event.
        """
        ledger, vanished, unread = self._ledgers[agent], list[DocumentKey](), list[Transient]()
        try:
            extents: dict[DocumentKey, Extent] = {}
            with suppress(DocumentUnwanted):  # one of the names; each document is refused by itself below
                unknown = [key for key in documents if ledger.file(key) is None]
                extents = self._client.extents(agent, unknown) if unknown else {}
            for key in documents:
                with self._locks[hash((agent, key)) % _LOCKS]:
                    if not self._sent(agent, key, extents.get(key), lane, unread):
                        vanished.append(key)
            if vanished:
                self._client.remove(agent, vanished)
                ledger.write([DocumentDelete(key, ledger.revision(key)) for key in vanished])
        except SenderRefused as error:
            self._reporter.report(ConditionCode.DOOR_REFUSES, agent=agent, error=str(error))
            raise
        self._reporter.resolve(ConditionCode.DOOR_REFUSES, agent=agent)
        if unread and lane is Lane.LIVE:  # the next comparison finds the others
            raise unread[0]

    def request_vectors(self, agent: str) -> None:
        """Do nothing: the fleet embeds."""

    def request_completion(self, agent: str) -> None:
        """Do nothing: the ledger has one generation."""

    def hold_back(self, agents: Collection[str], *, active: bool) -> None:
        """Do nothing: the fleet's searches cannot wait for this machine."""

    def epoch(self) -> str | None:
        """Return a constant: documents that are not sent are in no ledger."""
        return "door"

    def close(self) -> None:
        """Close the ledgers and the connections."""
        for ledger in self._ledgers.values():
            ledger.close()
        self._client.close()

    def _ledger(self, agent: AgentSettings, path: Path) -> SqliteStore:
        """Open the ledger of an agent; begin it anew if it is damaged, or of another agent, address or redaction."""
        facts = json.dumps([self._client.url, self._client.agent(agent.id), redaction_facts(agent)])
        with suppress(StoreCorrupt, OtherFormat):
            if path.exists():
                ledger = SqliteStore(path, _OPTIONS)
                if ledger.meta("fingerprint") == facts:
                    return ledger
                ledger.close()
        for ending in ("", "-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_generation(path, _OPTIONS, fingerprint=facts, description="")
        return SqliteStore(path, _OPTIONS)

    def _sent(self, agent: str, key: DocumentKey, extent: Extent | None, lane: Lane, unread: list[Transient]) -> bool:
        """Send a document; return False if the door must forget it. Failures of this document alone are recorded."""
        ledger, files = self._ledgers[agent], self._files[agent]
        indexed = ledger.file(key)
        sending = _Sending(self._client, ledger, self._agents[agent], key, lane)
        try:
            stat = files.stat(key)
            if stat is not None and (indexed is None or not indexed.stat.agrees_with(stat)):
                (sending.transcript if key.is_transcript else sending.note)(files, extent)
            return stat is not None or indexed is None or not forgets(files, key, ledger)
        except DocumentGone:
            return indexed is None or not forgets(files, key, ledger)
        except Permanent as error:
            log.warning("document_not_sent", agent=agent, path=key.path, reason=error.reason)
            ledger.add_dead_letter(key, reason=error.reason, error_class=type(error).__name__)
        except Transient as error:
            if isinstance(error, BrokerUnavailable | StoreBusy | StoreFull | OutOfMemory):
                raise
            unread.append(error)
        return True


class _Sending:
    """Sending of one document."""

    def __init__(
        self, client: DoorClient, ledger: SqliteStore, agent: AgentSettings, key: DocumentKey, lane: Lane
    ) -> None:
        self._ledger, self._key = ledger, key
        self._redact = redactor_for(agent, key.source)
        self._add = partial(client.add, agent.id, key, lane=lane)
        self._indexed = ledger.file(key)

    def note(self, files: AgentFiles, extent: Extent | None) -> None:
        """Send a note, unless the door has this content."""
        source = files.read(self._key)
        parts = [*parts_of(note_pieces(self._redact(source.text).encode()), NOTHING)]
        parts = parts or [Part(NOTHING, Extent(0, running_digest("", b"")), packed(b""), None)]
        end = parts[-1].end
        if self._indexed is not None and self._indexed.content_hash == end.digest:
            touched = DocumentTouch(self._key, self._indexed.stat_when_the_same(source.stat), end.digest)
            self._ledger.write([touched])
            return
        for part in parts if end != extent else ():
            self._add(part, is_last=part is parts[-1], of=None)
        self._record(source.stat, end.digest)

    def transcript(self, files: AgentFiles, extent: Extent | None) -> None:
        """Send the lines that the door lacks."""
        with files.opened(self._key) as opened:
            position = self._ledger.transcript(self._key)
            sent = _Sent.at(position) if position is not None else _Sent()
            if position is None and extent is not None and extent.size:
                sent = self._beginning(opened, sent, extent)
            for _ in range(2):
                try:
                    return self._send(opened, sent)
                except LinesChanged:
                    sent = _Sent()
                except PartMisplaced as error:
                    # An answer was lost, or the door was set back.
                    sent = self._beginning(opened, sent, error.present)
            return self._send(opened, _Sent())

    def _beginning(self, opened: OpenTranscript, sent: _Sent, extent: Extent) -> _Sent:
        """Return the place behind the content of the door if it begins this transcript, else the start."""
        if sent.extent.size >= extent.size or (lines := self._lines(opened, sent)) is None:
            return _Sent()
        with suppress(LinesChanged):
            for part in parts_of(self._pieces(opened, lines, sent), sent.extent, cut_at=extent.size):
                if part.end == extent and part.place is not None:
                    return _Sent(part.place, part.end, is_new=False)
                if part.end.size >= extent.size:
                    break
        return _Sent()

    def _lines(self, opened: OpenTranscript, sent: _Sent) -> Iterator[RawLine] | None:
        """Return the lines behind a place; None if those before it are others by now."""
        if not sent.place.lines:
            return opened.lines()
        position, place = sent.position(), sent.place
        last, lines = lines_after(
            opened, position, self._indexed, last_length=place.last_length, last_digest=place.last_digest
        )
        return lines if last is not None else None

    def _pieces(self, opened: OpenTranscript, lines: Iterator[RawLine], sent: _Sent) -> Iterator[Piece]:
        # The last row of a database changes until it has its end.
        return transcript_pieces(lines, sent.place, self._redact, sends_tail=isinstance(opened, OpenFile))

    def _send(self, opened: OpenTranscript, sent: _Sent) -> None:
        """Send the parts behind a place. An empty transcript has no parts and replaces nothing."""
        lines = self._lines(opened, sent)
        if lines is None:
            sent, lines = _Sent(), opened.lines()
        parts = parts_of(self._pieces(opened, lines, sent), sent.extent)
        part = next(parts, None)
        if part is None and sent.is_new and sent.extent != NOTHING:
            raise LinesChanged  # cut meanwhile, just behind a part
        while part is not None:
            following = next(parts, None)
            is_last = following is None or not sent.is_new
            self._add(part, is_last=is_last, of=opened.format)
            if part.place is not None:
                sent = _Sent(part.place, part.end, is_new=sent.is_new and not is_last)
                if following is not None:
                    unfinished = WRITTEN_MEANWHILE_NS if opened.changed() else UNFINISHED_NS
                    stat = FileStat(sent.place.offset, unfinished, opened.stat.inode)
                    self._record(stat, sent.place.digest, sent.position(), complete=False)
            part = following
        stat = replace(opened.stat, mtime_ns=WRITTEN_MEANWHILE_NS) if opened.changed() else opened.stat
        self._record(stat, sent.place.digest, sent.position())

    def _record(
        self, stat: FileStat, content_hash: str, position: TranscriptPosition | None = None, *, complete: bool = True
    ) -> None:
        revision = self._ledger.revision(self._key)
        write = DocumentWrite(self._key, revision, stat, content_hash, position=position, complete=complete)
        if self._ledger.write([write]) == [WriteOutcome.CONFLICT]:
            raise BrokerUnavailable("another process of this home sends the same documents; stop one of them")
