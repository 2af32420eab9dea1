"""The memory tools in a tool loop: their definitions, and what a model reads when memory cannot be asked.

The definitions are the service's own (`make docs` writes them down), carried along so that a loop can be set up before
the service runs.
"""

from __future__ import annotations

import json
from typing import Any, Literal

ToolForm = Literal["chat", "responses"]

#: Where the service lists its tools and calls them.
TOOLS_PATH = "/v1/tools"


def definitions() -> list[dict[str, Any]]:
    """Both tools: `name`, `title`, `description` and `inputSchema`, the JSON schema of the arguments."""
    from importlib.resources import files  # not for those who never ask: it takes longer than all of the client

    tools: list[dict[str, Any]] = json.loads((files(__package__) / "tools.json").read_text("utf-8"))
    return tools


def function_tools(form: ToolForm) -> list[Any]:
    """The definitions as a request's `tools`, for Chat Completions or for Responses.

    Raises:
        ValueError: `form` is another one.
    """
    if form not in ("chat", "responses"):
        raise ValueError(f"form must be 'chat' or 'responses', not {form!r}")
    functions = [
        {"name": tool["name"], "description": tool["description"], "parameters": tool["inputSchema"]}
        for tool in definitions()
    ]
    if form == "chat":
        return [{"type": "function", "function": function} for function in functions]
    # Responses is strict unless told otherwise, and a strict schema may leave no argument out.
    return [{"type": "function", **function, "strict": False} for function in functions]


def call_body(name: str, arguments: str | dict[str, Any]) -> dict[str, Any]:
    """What a model asked for, as it can be sent. Half of a surrogate pair, which a model may write, cannot."""
    given = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"name": _sendable(name), "arguments": _sendable(given)}


def refused_call(sentence: str) -> str:
    """What the model reads of a call that was wrong."""
    return json.dumps({"error": sentence}, ensure_ascii=False)


def unavailable(name: str, arguments: str | dict[str, Any], reason: str) -> str:
    """What the model reads when nobody answers: the same that the service says of a memory that it cannot ask."""
    return json.dumps(
        {
            **({"path": _path(arguments), "status": "error", "text": ""} if name == "memory_get" else {"results": []}),
            "disabled": True,
            "unavailable": True,
            "error": reason,
            "warning": "memory is unavailable",
            "action": "start it with `recalld up`, and see `recalld status`",
        },
        ensure_ascii=False,
    )


def _path(arguments: str | dict[str, Any]) -> str:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return ""
    path = arguments.get("path") if isinstance(arguments, dict) else None
    return path if isinstance(path, str) else ""


def _sendable(text: str) -> str:
    # A model may leave out the name of the tool.
    return str(text or "").encode("utf-8", "replace").decode("utf-8")
