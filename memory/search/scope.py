"""Scope: session keys, the rules that decide whether a session may search, and the documents that it may not find.

A session key names the place of a conversation, as OpenClaw writes it:

    agent:<id>:main                          the owner's private session
    agent:<id>:<channel>:direct:<peer>       a private chat ("dm" in older keys)
    agent:<id>:<channel>:group:<group>       a group; topics and threads follow behind
    agent:<id>:<channel>:channel:<room>      a room
    agent:<id>:cron:<job>, hook:<uuid>       the agent's own jobs
    agent:<id>:subagent:<uuid>               started by another session, which the key does not name

A request without a key, as from the command line, belongs to the owner's private session, and no rule applies. The
listeners of a channel with a place of another kind are unknown, so it is not private. Any key of another shape is a
private chat to which the rules apply.

Sessions in which others may listen neither find nor read long-term memory.

A transcript, and a note that names it, is for the owner and for sessions at the place of its conversation, by the key
in the session store beside it. `scope.private_transcripts` shows them to more sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from memory.documents.agent_files import AgentFiles, DocumentRefused
from memory.documents.content import DocumentGone
from memory.documents.note_facts import ORIGIN_WORDS, named_sessions, named_transcripts
from memory.documents.roots import LONG_TERM_NAMES, archived_path, is_personal
from memory.documents.session_kinds import place_of, split_key
from memory.index.readers import SharedReader
from memory.store.dead_letters import FORGOTTEN
from memory.store.reader import StoreReader
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey, FileStat
from schemas.errors import RecalldError

if TYPE_CHECKING:
    from schemas.settings import Scope, ScopeRule

ChatType = Literal["direct", "group", "channel"]

_MAIN = "main"
_SUBAGENT = "subagent"
_SHARED: tuple[ChatType, ...] = ("group", "channel")
_PRIVATE = frozenset({"direct", "dm"})
#: First words of keys that are no channel's name.
_NO_CHANNELS = frozenset({_MAIN, "cron", "hook", _SUBAGENT, *_SHARED, *_PRIVATE})
#: Ending of WhatsApp's group addresses; the oldest keys hold nothing else.
_WHATSAPP_GROUP = "@g.us"


@dataclass(frozen=True, slots=True)
class Session:
    """Session of a request.

    `raw` is the whole key and `key` the same without `agent:<id>:`, both in lower case; None where there is no key.
    `agent` is the agent that the key names, if any. `chat_type` is None if the key does not tell who listens.
    """

    raw: str | None
    agent: str | None
    key: str | None
    channel: str | None
    chat_type: ChatType | None

    @property
    def is_owner(self) -> bool:
        """Return True for the owner's private session. A key that names a person may belong to another person."""
        return self.key in (None, _MAIN)

    @property
    def is_private(self) -> bool:
        """Return True if the key tells that only the owner listens."""
        return self.chat_type == "direct"

    @property
    def is_shared(self) -> bool:
        """Return True if the key tells that others listen."""
        return self.chat_type in _SHARED


#: Session of a request without a key.
OWNER = Session(raw=None, agent=None, key=None, channel=None, chat_type="direct")


def session_of(session_key: str | None) -> Session:
    """Read a session key. Any text is valid; a blank key counts as no key."""
    raw = session_key.strip().lower() if session_key is not None else ""
    if not raw:
        return OWNER
    agent, key = split_key(raw)
    words = [word.strip() for word in key.split(":")]
    return Session(raw=raw, agent=agent, key=key, channel=_channel(words), chat_type=_chat_type(words))


def is_cited(citations: str, session: Session) -> bool:
    """Return True if results for a session name their source, by the setting `citations`."""
    return not session.is_shared if citations == "auto" else citations == "on"


def allows(scope: Scope, session: Session, *, agent: str) -> bool:
    """Return True if a session may search this agent's memory.

    A session without a key may, a key that names another agent may not. Else the first rule decides whose every field
    matches, or `default`.
    """
    if session.raw is None:
        return True
    if session.agent is not None and session.agent != agent.lower():
        return False
    for rule in scope.rules:
        if _matches(rule, session):
            return rule.action == "allow"
    return scope.default == "allow"


def _channel(words: Sequence[str]) -> str | None:
    first = words[0]
    placed = any(word in _SHARED or word in _PRIVATE for word in words[1:])
    return first if first and placed and first not in _NO_CHANNELS else None


def _chat_type(words: Sequence[str]) -> ChatType | None:
    # A shared place wins over every other word, so that strangers never see long-term memory.
    for shared in _SHARED:
        if shared in words:
            return shared
    if any(word.endswith(_WHATSAPP_GROUP) for word in words):
        return "group"
    if _SUBAGENT in words:
        return None
    # `telegram:supergroup:42`: a channel and a place in it with unknown listeners.
    placed = len(words) > 2 and words[0] not in _NO_CHANNELS
    return None if placed and not _PRIVATE.intersection(words) else "direct"


def _matches(rule: ScopeRule, session: Session) -> bool:
    if rule.channel is not None and rule.channel.strip().lower() != session.channel:
        return False
    if rule.chat_type is not None and rule.chat_type.strip().lower() != session.chat_type:
        return False
    if rule.raw_key_prefix is not None and not (session.raw or "").startswith(rule.raw_key_prefix.strip().lower()):
        return False
    if rule.key_prefix is None:
        return True
    prefix = rule.key_prefix.strip().lower()
    tested = session.raw if prefix.startswith("agent:") else session.key
    return tested is not None and tested.startswith(prefix)


_NAMES = frozenset(name.casefold() for name in LONG_TERM_NAMES)


@dataclass(frozen=True, slots=True)
class Withheld:
    """Documents that are withheld from a session, also under other names.

    A hard link to such a file is that file, also if it was a hard link when it was indexed. `names` recognizes such a
    document by its name, `workspace_keys` are those of the workspace, `inodes` are their numbers on the disk.
    Of transcripts all but `transcripts` are withheld, with the notes that name them, or sessions at another `place`;
    none if it is None.
    """

    names: Callable[[DocumentKey], bool]
    workspace_keys: frozenset[DocumentKey]
    inodes: frozenset[int]
    transcripts: frozenset[str] | None = None
    place: str = ""

    def __call__(self, reader: StoreReader, keys: Collection[DocumentKey]) -> frozenset[DocumentKey]:
        """Return those documents among `keys` that are withheld, by their files and texts at the time of indexing."""
        withheld = {key for key in keys if self.withholds_name(key)}
        notes = [key for key in keys if not key.is_transcript and key not in withheld]
        if notes:
            rows = reader.texts_holding(ORIGIN_WORDS, [*notes, *self.workspace_keys])
            inodes = self.inodes.union(inode for key, inode, _ in rows if key in self.workspace_keys)
            # An unknown inode is 0. Such a document is rather withheld than shown to strangers.
            inodes = inodes and inodes | {0}
            withheld |= {key for key, inode, text in rows if inode in inodes or (text and self.withholds_text(text))}
        return frozenset(withheld.intersection(keys))

    def withholds_name(self, key: DocumentKey) -> bool:
        """Return True for a document that is withheld by its name."""
        if not key.is_transcript or self.transcripts is None:
            return self.names(key)
        return (archived_path(key.path) or key.path) not in self.transcripts

    def withholds_text(self, text: str) -> bool:
        """Return True if a note with this text names a withheld transcript, or a session at another place."""
        if self.transcripts is not None and any(place_of(key) != self.place for key in named_sessions(text)):
            return True
        return any(self.withholds_name(DocumentKey(SESSIONS_SOURCE, path)) for path in named_transcripts(text))

    def withholds_file(self, files: AgentFiles, key: DocumentKey) -> bool:
        """Return True for a document that is withheld by its name or by its file."""
        if self.withholds_name(key) or key.is_transcript:
            return self.withholds_name(key)
        try:
            note = files.read(key)
            return not self.inodes.isdisjoint((0, note.stat.inode)) or self.withholds_text(note.text)
        except DocumentGone:
            return False
        except RecalldError:
            return True  # rather withheld than shown to strangers


def withheld_from(session: Session, files: AgentFiles) -> Withheld | None:
    """Return the documents that a search of this session must not find; None if it may find all.

    Notes about one of several people are for the owner alone: a session key names a sender, and proves nothing.
    """
    if session.is_owner:
        return None
    stats: dict[DocumentKey, FileStat | None] = dict(files.notes.personal())
    if not session.is_private:
        stats |= dict(_long_term_on_disk(files))
    inodes = frozenset(stat.inode for stat in stats.values() if stat is not None)
    sees_all = files.private_transcripts in (("direct", "all") if session.is_private else ("all",))
    place = place_of(session.raw or "")
    transcripts = None if sees_all else files.transcripts_at(place)
    names = _is_personal if session.is_private else is_long_term
    return Withheld(names, frozenset(stats), inodes, transcripts, place)


def is_long_term(key: DocumentKey) -> bool:
    """Return True for long-term memory by its name: MEMORY.md or USER.md, wherever it lies and however it is written.

    A disk that does not tell upper from lower case opens the file by any of the spellings.
    """
    return not key.is_transcript and key.path.rpartition("/")[2].casefold() in _NAMES


def resolve_for(session: Session, files: AgentFiles, path: str, *, indexed: SharedReader | None = None) -> DocumentKey:
    """Return the document of a path from outside, if the session may read it by its file and its `indexed` text.

    Raises:
        DocumentRefused: like `AgentFiles.resolve`; also for a document that is withheld from the session.
    """
    key = files.resolve(path)
    withheld = withheld_from(session, files)
    if withheld is not None and (
        withheld.withholds_file(files, key) or (indexed and _is_indexed_as_withheld(indexed, key, withheld))
    ):
        raise DocumentRefused("this document is withheld from the session")
    return key


def _is_indexed_as_withheld(indexed: SharedReader, key: DocumentKey, withheld: Withheld) -> bool:
    try:
        with indexed.lease() as reader:
            return reader is not None and bool(withheld(reader, [key]))
    except RecalldError:
        return False  # the file decides


def _is_personal(key: DocumentKey) -> bool:
    return not key.is_transcript and is_personal(key.path)


def _long_term_on_disk(files: AgentFiles) -> Iterator[tuple[DocumentKey, FileStat | None]]:
    for name in LONG_TERM_NAMES:
        key = DocumentKey(MEMORY_SOURCE, name)
        try:
            yield key, files.stat(key)
        except RecalldError:
            yield key, FORGOTTEN  # the index knows the inode that it read
