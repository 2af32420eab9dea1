"""What every section of the settings is: complete, frozen, and without unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the settings file. An unknown key is an error that names it."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
