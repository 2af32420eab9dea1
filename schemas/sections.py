"""Table of the settings file, and numbers that several of them have."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A table of the settings file: frozen, with finite numbers. An unknown key is an error that names it."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)
