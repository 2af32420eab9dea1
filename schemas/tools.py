"""A tool call and a tool's definition, as they travel over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class ToolRequest(_Wire):
    """A model's call, as a tool loop hands it on.

    `name` and `arguments` are what the model said, arguments as JSON in a text or as an object; `agent` and
    `sessionKey` are what the loop knows, never something that the model said. Without a session key it is the owner's
    private session, so an empty one is refused as the mistake that it is.
    """

    name: str
    arguments: str | dict[str, Any] = ""
    agent: str | None = None
    session_key: (
        Annotated[
            str,
            StringConstraints(strip_whitespace=True, min_length=1),
            Field(json_schema_extra={"pattern": r"\S"}),  # the length alone would describe a blank one as a key, too
        ]
        | None
    ) = None


class Tool(_Wire):
    """A tool as a model sees it. `inputSchema` is the JSON schema of its arguments."""

    name: str
    title: str
    description: str
    input_schema: dict[str, Any]


class ToolList(_Wire):
    """The tools, in the order in which they are used."""

    tools: Annotated[tuple[Tool, ...], Field(description="Named as in the Model Context Protocol.")]
