"""What the query service says of itself, and how it says no."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Refusal(BaseModel):
    """Why a request was not answered, in one sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    error: str


class Health(BaseModel):
    """The process is there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether searches can be answered; `error` says why not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: Literal["ready", "not ready"]
    error: str | None = None
