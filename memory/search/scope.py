"""Scope: session keys, the rules that decide whether a session may search, and what it may not find.

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
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from memory.documents.agent_files import AgentFiles, DocumentRefused
from memory.documents.roots import LONG_TERM_NAMES, is_personal
from memory.store.dead_letters import FORGOTTEN
from memory.store.reader import StoreReader
from schemas.documents import MEMORY_SOURCE, DocumentKey, FileStat
from schemas.errors import RecalldError

if TYPE_CHECKING:
    from schemas.settings import Scope, ScopeRule

ChatType = Literal["direct", "group", "channel"]

_AGENT = "agent"
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
    agent, key = None, raw
    if raw == _AGENT or raw.startswith(f"{_AGENT}:"):
        _, _, rest = raw.partition(":")
        agent, _, key = rest.partition(":")
        agent, key = agent.strip(), key.strip()
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
    tested = session.raw if prefix.startswith(f"{_AGENT}:") else session.key
    return tested is not None and tested.startswith(prefix)


_NAMES = frozenset(name.casefold() for name in LONG_TERM_NAMES)


@dataclass(frozen=True, slots=True)
class Withheld:
    """Documents that are withheld from a session, also under other names.

    A hard link to such a file is that file, also if it was a hard link when it was indexed. `names` recognizes such a
    document by its name, `kept` are those of the workspace, `inodes` are their numbers on the disk.
    """

    names: Callable[[DocumentKey], bool]
    kept: frozenset[DocumentKey]
    inodes: frozenset[int]

    def __call__(self, reader: StoreReader, keys: Collection[DocumentKey]) -> frozenset[DocumentKey]:
        """Return those documents among `keys` that are withheld."""
        inodes = self.inodes | set(_indexed_inodes(reader, self.kept))
        return frozenset(key for key in keys if self.names(key) or _is_one_of(reader, key, inodes))


def withheld_from(session: Session, files: AgentFiles) -> Withheld | None:
    """Return the documents that a search of this session must not find; None if it may find all.

    Notes about one of several people are for the owner alone: a session key names a sender, and proves nothing.
    """
    if session.is_owner:
        return None
    stats: dict[DocumentKey, FileStat | None] = dict(files.personal())
    if not session.is_private:
        stats |= dict(_long_term_on_disk(files))
    inodes = frozenset(stat.inode for stat in stats.values() if stat is not None)
    return Withheld(_is_personal if session.is_private else is_long_term, frozenset(stats), inodes)


def is_long_term(key: DocumentKey) -> bool:
    """Return True for long-term memory by its name: MEMORY.md or USER.md, wherever it lies and however it is written.

    A disk that does not tell upper from lower case opens the file by any of the spellings.
    """
    return not key.is_transcript and key.path.rpartition("/")[2].casefold() in _NAMES


def resolve_for(session: Session, files: AgentFiles, path: str) -> DocumentKey:
    """Return the document of a path from outside, if the session may read it.

    Raises:
        DocumentRefused: like `AgentFiles.resolve`; also for long-term memory that is withheld from the session.
    """
    key = files.resolve(path)
    withheld = withheld_from(session, files) if not key.is_transcript else None
    if withheld is not None and (withheld.names(key) or _is_the_same_file(files, key, withheld)):
        raise DocumentRefused("long-term memory is for private sessions")
    return key


def _is_personal(key: DocumentKey) -> bool:
    return not key.is_transcript and is_personal(key.path)


def _long_term_on_disk(files: AgentFiles) -> Iterator[tuple[DocumentKey, FileStat | None]]:
    for name in LONG_TERM_NAMES:
        key = DocumentKey(MEMORY_SOURCE, name)
        try:
            yield key, files.stat(key)
        except RecalldError:
            yield key, None  # the index knows the inode that it read


def _indexed_inodes(reader: StoreReader, kept: Collection[DocumentKey]) -> Iterator[int]:
    for key in kept:
        indexed = reader.file(key)
        if indexed is not None and indexed.stat != FORGOTTEN:
            yield indexed.stat.inode


def _is_one_of(reader: StoreReader, key: DocumentKey, inodes: Collection[int]) -> bool:
    """Return True if the index read a document from one of these files."""
    indexed = reader.file(key) if inodes and not key.is_transcript else None
    # The inode of a forgotten document is unknown. It is rather withheld than shown to strangers.
    return indexed is not None and (indexed.stat == FORGOTTEN or indexed.stat.inode in inodes)


def _is_the_same_file(files: AgentFiles, key: DocumentKey, withheld: Withheld) -> bool:
    """Return True if a withheld file has this name, too: by a hard link, or by the disk's rules for names."""
    try:
        asked = files.stat(key)
        kept = [files.stat(one) for one in withheld.kept]
    except RecalldError:
        return True  # rather refused than shown to strangers
    return asked is not None and any(stat is not None and stat.inode == asked.inode for stat in kept)
