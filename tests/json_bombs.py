"""JSON that nobody should send in a request, by name."""

from __future__ import annotations

import json

_MANY = 100_000


def _mcp(params: bytes, method: bytes = b"tools/call", number: bytes = b"1") -> bytes:
    return b'{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}' % (number, method, params)


def _wide(names: str, count: int) -> bytes:
    return json.dumps({f"{names}{number}": number for number in range(count)}, separators=(",", ":")).encode()


_NESTED = b"[" * _MANY + b"]" * _MANY
_DIGITS = b"9" * 900_000

#: Of any door.
BOMBS: dict[str, bytes] = {
    "brackets": b"[" * _MANY,
    "closed brackets": _NESTED,
    "braces": b'{"a":' * _MANY,
    "closed braces": b'{"a":' * _MANY + b"1" + b"}" * _MANY,
    "braces in a field": b'{"query":' + b'{"a":' * _MANY + b"1" + b"}" * _MANY + b"}",
    "keys": _wide("", 80_000),
    "a long key": b'{"' + b"k" * 1_000_000 + b'":1}',
    "digits": _DIGITS,
    "digits in a field": b'{"query":"a","maxResults":' + _DIGITS + b"}",
    "digits below zero": b'{"query":"a","maxResults":-' + _DIGITS + b"}",
    "an exponent": b'{"query":"a","minScore":1e999999999}',
    "a large float": b'{"query":"a","maxResults":1e308}',
    "NaN": b"NaN",
    "NaN in a field": b'{"query":"a","minScore":NaN}',
    "NaN as a query": b'{"query":NaN}',
    "Infinity": b'{"query":"a","maxResults":-Infinity}',
    "half a surrogate pair as a key": b'{"\\ud800":1}',
    "half a surrogate pair as an agent": b'{"query":"a","agent":"\\ud800"}',
    "half a surrogate pair, not escaped, as a key": b'{"\xed\xa0\x80":1}',
    "NUL": b'{"query":"\0"}',
    "NUL as a key": b'{"\\u0000":1}',
    "NUL as an agent": b'{"query":"a","agent":"\\u0000"}',
    "Latin-1": b'{"query":"\xe4\xf6"}',
    "UTF-16 cut off": '{"query":"x"}'.encode("utf-16")[:-1],
    "an agent without end": json.dumps({"query": "a", "agent": "a" * 1_000_000}).encode(),
    "sources without end": json.dumps({"query": "a", "sources": ["x"] * 200_000}).encode(),
    "a path without end": json.dumps({"path": "a" * 1_000_000}).encode(),
    "a tool's nested arguments": b'{"name":"memory_search","arguments":' + _NESTED + b"}",
    "a message's nested parameters": _mcp(_NESTED),
    "a message's nested arguments": _mcp(b'{"name":"memory_search","arguments":{"query":' + _NESTED + b"}}"),
    "a message's number": _mcp(b"{}", number=_DIGITS),
    "messages without end": b"[" + b",".join([_mcp(b"{}", b"ping")] * 10_000) + b"]",
    "half a surrogate pair as a tool's name": _mcp(b'{"name":"\\ud800","arguments":{}}'),
    "half a surrogate pair as a program's name": _mcp(b'{"clientInfo":{"name":"\\ud800"}}', b"initialize"),
    "not JSON": b"{",
    "nothing but spaces": b" " * 1_000_000,
    "no object": b'"query"',
}

#: What a model may have written: an answer for it to read, with status 200, at the tools' doors.
MODELS_BOMBS: dict[str, bytes] = {
    "nested": json.dumps("[" * _MANY).encode(),
    "digits": b'"{\\"query\\":\\"a\\",\\"maxResults\\":' + b"9" * 100_000 + b'}"',
    "keys": _wide("k", 60_000),
    "a long key": b'{"' + b"k" * 900_000 + b'":1}',
    "numbers": b'{"query":1e308}',
    "a list": b'{"query":["a"]}',
}

#: Hooks whose paths no file can have: accepted, and forgotten or taken for "look at everything".
ODD_HOOKS: dict[str, tuple[str, dict[str, object]]] = {
    "half a surrogate pair": ("claude-code", {"hook_event_name": "PreCompact", "transcript_path": "/a\ud800/x.jsonl"}),
    "half a surrogate pair of a user": ("codex", {"hook_event_name": "PreCompact", "transcript_path": "~\ud800x/x"}),
    "NUL": ("claude-code", {"hook_event_name": "SessionEnd", "transcript_path": "/a\0b"}),
    "a long path": ("claude-code", {"hook_event_name": "PreCompact", "transcript_path": "/a" * 2000}),
    "a path of numbers": ("codex", {"hook_event_name": "PreCompact", "transcript_path": [1, {}]}),
    "a name": ("claude-code", {"hook_event_name": "\ud800"}),
    "a session": (
        "openclaw",
        {"type": "command", "action": "new", "context": {"sessionEntry": {"sessionId": "\ud800"}}},
    ),
    "a file": ("openclaw", {"type": "session", "action": "compact:after", "context": {"sessionFile": "/x\ud800"}}),
    "an agent": ("openclaw", {"type": "command", "action": "new", "sessionKey": f"agent:{'x' * 900_000}\ud800:a"}),
}
