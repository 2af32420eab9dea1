"""Pruning of old tool results, rule by rule and as laws over random conversations."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.context.messages import characters
from memory.context.pruning import prune
from schemas.context import PruneAnswer, PruneRequest
from schemas.settings import Pruning

NOW = 1_000_000.0
COLD = NOW - 3_600
ON = Pruning(mode="cache-ttl")

#: A window of 10,000 characters.
SMALL_WINDOW = 2_500

Messages = list[dict[str, Any]]


def chat(number: int, text: str, tool: str) -> Messages:
    call = {"id": f"call-{number}", "type": "function", "function": {"name": tool, "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call-{number}", "content": text},
    ]


def responses(number: int, text: str, tool: str) -> Messages:
    return [
        {"type": "function_call", "call_id": f"call-{number}", "name": tool, "arguments": "{}"},
        {"type": "function_call_output", "call_id": f"call-{number}", "output": text},
    ]


def anthropic(number: int, text: str, tool: str) -> Messages:
    use = {"type": "tool_use", "id": f"call-{number}", "name": tool, "input": {}}
    result = {"type": "tool_result", "tool_use_id": f"call-{number}", "content": [{"type": "text", "text": text}]}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


def openclaw(number: int, text: str, tool: str) -> Messages:
    call = {"type": "toolCall", "id": f"call-{number}", "name": tool, "arguments": {}}
    return [
        {"role": "assistant", "content": [call]},
        {"role": "toolResult", "toolCallId": f"call-{number}", "content": [{"type": "text", "text": text}]},
    ]


SHAPES = [chat, responses, anthropic, openclaw]


def conversation(*texts: str, shape: Any = chat, tools: tuple[str, ...] = (), turns: int = 3) -> Messages:
    """A question, results of tools, and so many turns of the assistant after them."""
    messages: Messages = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Look at the logs."}]
    for number, text in enumerate(texts):
        messages += shape(number, text, tools[number] if number < len(tools) else "read")
    for number in range(turns):
        messages += [{"role": "assistant", "content": f"turn {number}"}, {"role": "user", "content": f"go on {number}"}]
    return messages


def pruned(messages: Any, settings: Pruning = ON, now: float = NOW, **request: Any) -> PruneAnswer:
    request = {"touched_at": COLD, "window_tokens": SMALL_WINDOW, **request}
    return prune(PruneRequest(messages=messages, **request), settings, now=now)


def results(messages: Any) -> list[str]:
    """The texts of tools' results, whatever the shape."""
    found = []
    for message in messages:
        for part in [message, *(message["content"] if isinstance(message.get("content"), list) else [])]:
            is_result = part.get("role") in {"tool", "toolResult"} or part.get("type") in {
                "tool_result",
                "function_call_output",
            }
            if is_result:
                content = part.get("output", part.get("content"))
                found.append(content if isinstance(content, str) else content[0]["text"])
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_a_long_result_keeps_its_beginning_and_its_end(shape: Any) -> None:
    text = "a" * 1500 + "b" * 2000 + "c" * 1500
    after = pruned(conversation(text, shape=shape))
    note = "[Tool result trimmed: kept first 1500 and last 1500 of 5000 characters.]"
    assert results(after.messages) == ["a" * 1500 + "\n...\n" + "c" * 1500 + "\n\n" + note]
    assert after.touched_at == NOW


@pytest.mark.parametrize("shape", SHAPES)
def test_the_oldest_results_are_cleared_until_half_of_the_window_is_free(shape: Any) -> None:
    texts = [f"{number}" + "x" * 3_999 for number in range(30)]
    after = pruned(conversation(*texts, shape=shape), window_tokens=50_000)
    cleared = [text == "[Old tool result content cleared]" for text in results(after.messages)]
    assert cleared == sorted(cleared, reverse=True)
    assert after.characters_after / 200_000 < 0.5 <= after.characters_before / 200_000
    # One fewer would not have been enough.
    assert (after.characters_after + 4_000) / 200_000 >= 0.5


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_results_of_one_call_are_repeated_as_they_were_pruned(shape: Any) -> None:
    # Clearing the first of them frees half of the window, so the second one is only trimmed.
    messages = conversation("x" * 6_000, "x" * 6_000, shape=shape)
    messages = json.loads(json.dumps(messages).replace("call-1", "call-0"))
    settings = Pruning(mode="cache-ttl", min_prunable_tool_chars=0)
    after = pruned(messages, settings, window_tokens=2_000)
    assert len(set(results(after.messages))) == 2
    again = pruned(messages, settings, NOW + 1, window_tokens=2_000, touched_at=NOW, decisions=after.decisions)
    assert again.messages == after.messages


LONG = "x" * 6_000
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}

NOT_PRUNED = {
    "switched off": (conversation(LONG), Pruning(), {}),
    "the cache is warm": (conversation(LONG), ON, {"touched_at": NOW - 299}),
    "no call was made yet": (conversation(LONG), ON, {"touched_at": None}),
    "less than three turns follow": (conversation(LONG, turns=2), ON, {}),
    "the window is nearly empty": (conversation(LONG), ON, {"window_tokens": 200_000}),
    "the window is unknown and large": (conversation(LONG), ON, {"window_tokens": None}),
    "the tool is denied": (conversation(LONG), Pruning(mode="cache-ttl", tools={"deny": ["RE*"]}), {}),
    "the tool is denied and allowed": (
        conversation(LONG),
        Pruning(mode="cache-ttl", tools={"allow": ["*"], "deny": ["read"]}),
        {},
    ),
    "another tool is allowed": (conversation(LONG), Pruning(mode="cache-ttl", tools={"allow": ["exec"]}), {}),
    "there is no user message before it": (conversation(LONG)[2:4] + conversation()[2:], ON, {}),
    "the result holds an image": (
        [
            *conversation()[:2],
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "shot", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": LONG}, IMAGE]}
                ],
            },
            *conversation()[2:],
        ],
        ON,
        {},
    ),
    "it is short": (conversation("x" * 3_999, "x" * 3_999), ON, {}),
}


@pytest.mark.parametrize("case", NOT_PRUNED.values(), ids=NOT_PRUNED)
def test_nothing_is_pruned_because(case: tuple[Messages, Pruning, dict[str, Any]]) -> None:
    messages, settings, options = case
    after = pruned(messages, settings, **options)
    assert list(after.messages) == messages
    assert (after.touched_at, after.decisions) == (options.get("touched_at", COLD), {})


@pytest.mark.parametrize("allow", [("read",), ("R*",), ()], ids=["name", "glob", "all"])
def test_results_of_allowed_tools_are_pruned(allow: tuple[str, ...]) -> None:
    assert results(pruned(conversation(LONG), Pruning(mode="cache-ttl", tools={"allow": allow})).messages) != [LONG]


def test_few_characters_of_results_are_never_cleared() -> None:
    texts = ["x" * 4_000] * 12
    assert results(pruned(conversation(*texts)).messages) == texts
    eager = Pruning(mode="cache-ttl", min_prunable_tool_chars=0)
    assert "[Old tool result content cleared]" in results(pruned(conversation(*texts), eager).messages)
    off = Pruning(mode="cache-ttl", min_prunable_tool_chars=0, hard_clear={"enabled": False})
    assert results(pruned(conversation(*texts), off).messages) == texts


def test_an_image_counts_for_its_place_in_the_window() -> None:
    assert characters({"role": "user", "content": [IMAGE, {"type": "text", "text": "12345"}]}) == 8_005


def test_earlier_decisions_are_repeated_byte_for_byte_while_the_cache_is_warm() -> None:
    first = pruned(conversation(LONG))
    longer = [*conversation(LONG), *chat(9, LONG, "read")]
    state = {"touched_at": first.touched_at, "decisions": first.decisions}
    second = pruned(longer, now=NOW + 1, **state)
    assert second.messages[: len(first.messages)] == first.messages
    assert results(second.messages)[-1] == LONG
    assert {"touched_at": second.touched_at, "decisions": second.decisions} == state


_RESULTS = st.lists(
    st.tuples(st.integers(0, 30_000), st.sampled_from(["read", "exec", "search"]), st.sampled_from(SHAPES)), max_size=12
)


@given(_RESULTS, st.integers(0, 5), st.integers(100, 100_000), st.integers(0, 9_000), st.integers(0, 9_000))
def test_pruning_shortens_changes_no_input_and_is_idempotent(
    made: list[tuple[int, str, Any]], turns: int, window: int, head: int, tail: int
) -> None:
    messages = conversation(turns=0)
    for number, (length, tool, shape) in enumerate(made):
        messages += shape(number, str(number % 10) * length, tool)
    messages += conversation(turns=turns)[2:]
    before = copy.deepcopy(messages)
    settings = Pruning(mode="cache-ttl", soft_trim={"head_chars": head, "tail_chars": tail})
    after = pruned(messages, settings, window_tokens=window)
    assert messages == before
    assert len(after.messages) == len(messages)
    assert after.characters_before == sum(map(characters, messages))
    assert after.characters_after == sum(map(characters, after.messages)) <= after.characters_before
    assert pruned(after.messages, settings, window_tokens=window).messages == after.messages
    again = pruned(messages, settings, window_tokens=window)
    assert json.dumps(again.messages) == json.dumps(after.messages)
    state = {"touched_at": after.touched_at, "decisions": after.decisions}
    replayed = pruned(messages, settings, window_tokens=window, **state)
    assert replayed.messages == after.messages


ODD: list[dict[str, Any]] = [
    {},
    {"role": 5, "type": ["x"]},
    {"role": "tool"},
    {"role": "tool", "content": 7},
    {"role": "assistant", "tool_calls": "x", "content": 3},
    {"role": "assistant", "tool_calls": [None, {"function": "x"}, {"custom": {"name": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "content": [5]}, "text", {"type": "tool_result"}]},
    {"type": "function_call_output", "output": {"a": "\ud800"}},
]


def test_messages_of_an_unknown_shape_stay_as_they_are() -> None:
    messages = [*conversation(LONG)[:2], *ODD, *conversation(LONG)[2:]]
    after = pruned(messages)
    assert list(after.messages[2 : 2 + len(ODD)]) == ODD
    assert results(after.messages[2 + len(ODD) :]) != [LONG]
