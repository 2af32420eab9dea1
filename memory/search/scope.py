"""Scope: session keys, and the rules that decide whether a session may search. Pure.

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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from schemas.settings_sections import Scope, ScopeRule

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
