"""Session keys and scope rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from memory.search.scope import OWNER, allows, session_of
from schemas.settings import Scope, ScopeRule

DENY_GROUPS = {"action": "deny", "chat_type": "group"}
ALLOW_DIRECT = {"action": "allow", "chat_type": "direct"}

WORDS = st.sampled_from(
    ["main", "telegram", "slack", "42", "cron", "direct", "dm", "thread", "subagent", "", "x y", "群"]
)
KEYS = st.lists(WORDS, min_size=1, max_size=5).map(":".join)


def scope(*rules: dict[str, str], default: str = "allow") -> Scope:
    return Scope.model_validate({"default": default, "rules": rules})


@pytest.mark.parametrize(
    ("key", "agent", "normalised", "channel", "chat_type"),
    [
        ("agent:main:main", "main", "main", None, "direct"),
        ("agent:main:main:thread:7", "main", "main:thread:7", None, "direct"),
        ("agent:main:telegram:group:42", "main", "telegram:group:42", "telegram", "group"),
        ("AGENT:Main:Telegram:GROUP:42", "main", "telegram:group:42", "telegram", "group"),
        ("agent:main:telegram:group:42:topic:9", "main", "telegram:group:42:topic:9", "telegram", "group"),
        ("agent:main:slack:channel:c1", "main", "slack:channel:c1", "slack", "channel"),
        ("agent:main:telegram:direct:ada", "main", "telegram:direct:ada", "telegram", "direct"),
        ("agent:main:whatsapp:dm:+49", "main", "whatsapp:dm:+49", "whatsapp", "direct"),
        ("agent:main:telegram:work:group:42", "main", "telegram:work:group:42", "telegram", "group"),
        ("agent:main:direct:ada", "main", "direct:ada", None, "direct"),
        ("agent:main:cron:nightly", "main", "cron:nightly", None, "direct"),
        ("cron:nightly", None, "cron:nightly", None, "direct"),
        ("agent:main:subagent:3f1c", "main", "subagent:3f1c", None, None),
        ("agent:main:telegram:group:42:subagent:1", "main", "telegram:group:42:subagent:1", "telegram", "group"),
        ("group:42", None, "group:42", None, "group"),
        ("whatsapp:12036304@g.us", None, "whatsapp:12036304@g.us", None, "group"),
        ("telegram:group:42", None, "telegram:group:42", "telegram", "group"),
        # An agent may be called anything.
        ("agent:group:main", "group", "main", None, "direct"),
        ("agent::main", "", "main", None, "direct"),
        ("agent", "", "", None, "direct"),
        (" hook : 1 : Group : 2 ", None, "hook : 1 : group : 2", None, "group"),
        ("c0ffee-1234", None, "c0ffee-1234", None, "direct"),
        # A place of a kind that nobody knows: it does not tell who listens.
        ("agent:main:telegram:supergroup:42", "main", "telegram:supergroup:42", None, None),
    ],
)
def test_a_key_says_where_a_conversation_takes_place(key, agent, normalised, channel, chat_type):
    session = session_of(key)

    assert (session.agent, session.key, session.channel, session.chat_type) == (agent, normalised, channel, chat_type)
    assert session.raw == key.strip().lower()


@pytest.mark.parametrize("key", [None, "", "  \n"])
def test_without_a_key_it_is_the_owner_whom_no_rule_shuts_out(key):
    session = session_of(key)

    assert session == OWNER
    assert session.is_private
    assert allows(scope({"action": "deny"}, default="deny"), session, agent="main")


@pytest.mark.parametrize(
    ("rules", "default", "key", "allowed"),
    [
        ([], "allow", "agent:main:telegram:group:42", True),
        ([], "deny", "agent:main:main", False),
        ([DENY_GROUPS], "allow", "agent:main:telegram:group:42", False),
        ([DENY_GROUPS], "allow", "agent:main:slack:channel:1", True),
        ([ALLOW_DIRECT], "deny", "agent:main:main", True),
        ([ALLOW_DIRECT], "deny", "agent:main:telegram:dm:ada", True),
        ([ALLOW_DIRECT], "deny", "agent:main:slack:channel:1", False),
        # Nobody knows for whom a subagent works: neither rule is about it.
        ([ALLOW_DIRECT], "deny", "agent:main:subagent:1", False),
        ([DENY_GROUPS], "allow", "agent:main:subagent:1", True),
        ([{"action": "deny", "channel": "Slack"}], "allow", "agent:main:slack:direct:ada", False),
        ([{"action": "deny", "channel": "slack"}], "allow", "agent:main:telegram:direct:slack", True),
        # Every field that is given has to match.
        ([{"action": "deny", "channel": "slack", "chat_type": "group"}], "allow", "agent:main:slack:channel:1", True),
        ([{"action": "deny", "channel": "slack", "chat_type": "group"}], "allow", "agent:main:slack:group:1", False),
        # A prefix is of the key without the agent, or of the whole key.
        ([{"action": "deny", "key_prefix": "cron:"}], "allow", "agent:main:cron:nightly", False),
        ([{"action": "deny", "key_prefix": "agent:main:cron:"}], "allow", "agent:main:cron:nightly", False),
        ([{"action": "deny", "key_prefix": "agent:main:cron:"}], "allow", "cron:nightly", True),
        ([{"action": "deny", "key_prefix": "main"}], "allow", "agent:main:telegram:direct:a", True),
        # A raw prefix is of the whole key, as it came.
        ([{"action": "deny", "raw_key_prefix": "agent:main:discord:"}], "allow", "agent:main:discord:group:1", False),
        ([{"action": "deny", "raw_key_prefix": "agent:main:discord:"}], "allow", "discord:group:1", True),
        ([{"action": "deny", "raw_key_prefix": "discord:"}], "allow", "agent:main:discord:group:1", True),
        ([{"action": "deny", "raw_key_prefix": "agent:", "key_prefix": "cron:"}], "allow", "agent:main:hook:1", True),
        ([{"action": "deny", "raw_key_prefix": "agent:", "key_prefix": "cron:"}], "allow", "agent:main:cron:1", False),
        # The first match wins.
        ([DENY_GROUPS, {"action": "allow"}], "allow", "agent:main:telegram:group:42", False),
        ([{"action": "allow", "key_prefix": "telegram:group:42"}, DENY_GROUPS], "allow", "telegram:group:42", True),
        ([{"action": "deny"}, {"action": "allow"}], "allow", "agent:main:main", False),
        # Another agent's session is never let in.
        ([{"action": "allow"}], "allow", "agent:other:main", False),
        ([], "allow", "agent:MAIN:main", True),
    ],
)
def test_the_first_matching_rule_decides(rules, default, key, allowed):
    assert allows(scope(*rules, default=default), session_of(key), agent="Main") is allowed


def test_a_chat_type_that_does_not_exist_is_a_mistake_and_no_rule_that_never_matches():
    with pytest.raises(ValidationError, match="'direct', 'group' or 'channel'"):
        ScopeRule.model_validate({"action": "deny", "chat_type": "groups"})
    assert ScopeRule.model_validate({"action": "deny", "chat_type": " Group"}).chat_type == "group"


@given(before=KEYS, place=st.sampled_from(["group", "channel", "GROUP", " Channel "]), after=KEYS, agent=st.booleans())
def test_a_shared_place_is_never_private_whatever_else_a_key_says(before, place, after, agent):
    session = session_of(("agent:main:" if agent else "") + f"{before}:{place}:{after}")

    assert not session.is_private
    assert session.is_shared
