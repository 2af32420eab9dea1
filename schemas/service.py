"""Messages of the query service about itself, its tools, and requests that it refuses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Refusal(_Wire):
    """Reason why a request was not answered, in one sentence."""

    error: str


class Health(_Wire):
    """Answer of a process that runs."""

    status: Literal["ok"]


class Readiness(_Wire):
    """Readiness to answer searches; `error` is the reason of "not ready"."""

    status: Literal["ready", "not ready"]
    error: str | None = None


class ToolRequest(_Wire):
    """Tool call of a model, as a tool loop sends it.

    The model gives `name` and `arguments`, the latter as JSON in a text or as an object. The loop gives `agent` and
    `sessionKey`. Without a session key the session is the owner's private one.
    An empty session key is refused.
    """

    name: str
    arguments: str | dict[str, Any] = ""
    agent: str | None = None
    session_key: (
        Annotated[
            str,
            StringConstraints(strip_whitespace=True, min_length=1),
            Field(json_schema_extra={"pattern": r"\S"}),  # the length alone would describe a blank key, too
        ]
        | None
    ) = None


class Tool(_Wire):
    """Tool as a model sees it. `inputSchema` is the JSON schema of its arguments."""

    name: str
    title: str
    description: str
    input_schema: dict[str, Any]


class ToolList(_Wire):
    """Tools, in the order of their use."""

    tools: Annotated[tuple[Tool, ...], Field(description="Named as in the Model Context Protocol.")]
