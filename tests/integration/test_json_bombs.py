"""JSON that would cost a careless reader dearly: one sentence and a 4xx at every door, and the door goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from producers.hook_server import HookServer
from schemas.ports import Event
from schemas.settings import Settings
from tests.hostile_client import Answer, request, said
from tests.recording import RecordingConditions
from tests.serving import running

QUERIES = ["/v1/search", "/v1/tools", "/mcp"]
HOOKS = ["/v1/hooks/claude-code"]
ACCEPT = "Accept: application/json, text/event-stream"

#: Characters that a sentence has at most, whatever it is about.
SENTENCE = 400


_MANY = 100_000


def _mcp(params: bytes, method: bytes = b"tools/call") -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}' % (method, params)


_NESTED = b"[" * _MANY + b"]" * _MANY
_DIGITS = b"9" * 900_000

#: Of any door.
BOMBS: dict[str, bytes] = {
    "closed brackets": _NESTED,
    "braces in a field": b'{"query":' + b'{"a":' * _MANY + b"1" + b"}" * _MANY + b"}",
    "a long key": b'{"' + b"k" * 1_000_000 + b'":1}',
    "digits in a field": b'{"query":"a","maxResults":' + _DIGITS + b"}",
    "NaN in a field": b'{"query":"a","minScore":NaN}',
    "half a surrogate pair as a key": b'{"\\ud800":1}',
    "NUL": b'{"query":"\0"}',
    "Latin-1": b'{"query":"\xe4\xf6"}',
    "UTF-16 cut off": '{"query":"x"}'.encode("utf-16")[:-1],
    "a message's nested arguments": _mcp(b'{"name":"memory_search","arguments":{"query":' + _NESTED + b"}}"),
    "messages without end": b"[" + b",".join([_mcp(b"{}", b"ping")] * 10_000) + b"]",
    "not JSON": b"{",
    "nothing but spaces": b" " * 1_000_000,
    "no object": b'"query"',
}

#: What a model may have written: an answer for it to read, with status 200, at the tools' doors.
MODELS_BOMBS: dict[str, bytes] = {
    "nested": json.dumps("[" * _MANY).encode(),
    "digits": b'"{\\"query\\":\\"a\\",\\"maxResults\\":' + b"9" * 100_000 + b'}"',
    "a list": b'{"query":["a"]}',
}

#: Hooks whose paths no file can have: accepted, and forgotten or taken for "look at everything".
ODD_HOOKS: dict[str, tuple[str, dict[str, object]]] = {
    "half a surrogate pair": ("claude-code", {"hook_event_name": "PreCompact", "transcript_path": "/a\ud800/x.jsonl"}),
    "NUL": ("claude-code", {"hook_event_name": "SessionEnd", "transcript_path": "/a\0b"}),
    "a long path": ("claude-code", {"hook_event_name": "PreCompact", "transcript_path": "/a" * 2000}),
    "an agent": ("openclaw", {"type": "command", "action": "new", "sessionKey": f"agent:{'x' * 900_000}\ud800:a"}),
}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Of the query service, and of the hooks' server."""
    folder = tmp_path_factory.mktemp("bombs")
    (folder / "workspace" / "memory").mkdir(parents=True)
    agent = {"id": "main", "workspace": folder / "workspace", "provider": "stub"}
    settings = Settings.model_validate({"home": folder / "home", "agents": [agent]})
    hooks = HookServer(settings, 0, _forget, RecordingConditions())
    hooks.start()
    try:
        with running(settings) as client:
            assert client.base_url.port is not None
            yield {"service": client.base_url.port, "hooks": int(hooks.url.split(":")[2].split("/")[0])}
    finally:
        hooks.stop()


def _forget(_: Event) -> None: ...


@pytest.mark.parametrize("path", [*QUERIES, *HOOKS])
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_a_sentence(ports: dict[str, int], path: str, name: str):
    with capture_logs() as logs:
        answer = said(ports["hooks" if path in HOOKS else "service"], request("POST", path, BOMBS[name], ACCEPT))
    assert 400 <= answer.status < 500, answer
    sentence = answer.error or answer.json["error"]["message"]
    assert 0 < len(sentence) < SENTENCE
    assert "\n" not in sentence
    assert logs == []


@pytest.mark.parametrize("name", MODELS_BOMBS)
def test_what_a_model_wrote_is_answered_in_a_sentence(ports: dict[str, int], name: str):
    call = b'{"name":"memory_search","arguments":%s}' % MODELS_BOMBS[name]
    answer = said(ports["service"], request("POST", "/v1/tools", call))
    assert answer.status == 200
    assert 0 < len(answer.error) < SENTENCE
    call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%s}' % call
    answer = said(ports["service"], request("POST", "/mcp", call, ACCEPT))
    assert answer.status in {200, 400}
    assert len(answer.body) < 2 * SENTENCE


@pytest.mark.parametrize("name", ODD_HOOKS)
def test_a_hook_about_what_cannot_be_a_file_is_none_of_anybodys_trouble(ports: dict[str, int], name: str):
    program, hook = ODD_HOOKS[name]
    with capture_logs() as logs:
        answer = said(ports["hooks"], request("POST", f"/v1/hooks/{program}", json.dumps(hook).encode()))
    assert (answer.status, logs) == (202, [])


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        (
            "search",
            {"query": "x", "limit": 5},
            "unknown field limit; valid are query, agent, maxResults, minScore, sources, corpus, sessionKey, waitMs",
        ),
        (
            "get",
            {"path": "x", "until": 3},
            "unknown field until; valid are path, from, lines, corpus, agent, sessionKey",
        ),
        ("search", {}, "query is missing"),
        ("search", {"query": "x", "sources": ["notes"]}, "sources.0 must be 'memory' or 'sessions'"),
        ("search", {"query": "x", "maxResults": 0}, "maxResults must be at least 1"),
        ("search", {"query": "x", "maxResults": "many"}, "maxResults must be a whole number"),
        ("search", {"query": "x", "waitMs": None, "agent": 5}, "agent must be a text"),
        ("get", {"path": "a" * 5000}, "path must have at most 4096 characters"),
        ("tools", {"name": "memory_search", "arguments": 5}, "arguments must be a text or an object"),
        ("tools", {"name": "memory_search", "sessionKey": " "}, "sessionKey must not be empty"),
        ("search", [], "the body must be a JSON object, sent with Content-Type: application/json"),
    ],
)
def test_a_field_that_is_wrong_is_named_in_plain_words(ports: dict[str, int], path: str, body: object, sentence: str):
    answer = posted(ports, path, body)
    assert (answer.status, answer.error) == (422, sentence)


def test_a_path_that_is_no_document_is_told_what_one_is(ports: dict[str, int]):
    answer = posted(ports, "get", {"path": "/etc/passwd"}).json
    assert answer["text"] == ""
    assert answer["error"].startswith("not found: path must name a document of this memory: MEMORY.md, ")


def test_a_request_without_a_body_or_of_another_kind_is_told_so(ports: dict[str, int]):
    for sent in (request("POST", "/v1/search"), request("POST", "/v1/search", b'{"query":"x"}', "Content-Type: a/b")):
        assert said(ports["service"], sent).error.startswith("the body must be a JSON object, ")


def posted(ports: dict[str, int], path: str, body: object) -> Answer:
    return said(ports["service"], request("POST", f"/v1/{path}", json.dumps(body).encode()))
