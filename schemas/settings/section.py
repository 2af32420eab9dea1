"""Base class of the tables of the settings file, and the types of values that several tables have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from schemas.globs import compiled

#: Part of a whole.
Share = Annotated[float, Field(ge=0.0, le=1.0)]

#: An agent id becomes a folder name, a URL part and a token's file name.
AGENT_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

#: The id of an agent in a fleet's directory may name its tenant: acme/anna. No settings file may.
FLEET_AGENT_ID_PATTERN = r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Section(BaseModel):
    """Table of the settings file: frozen, with finite numbers. An unknown key is an error that names the key."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


def _are_globs(value: tuple[str, ...]) -> tuple[str, ...]:
    compiled(value, ())
    return value


#: Globs of paths, each checked.
Globs = Annotated[tuple[str, ...], AfterValidator(_are_globs)]


class ExtraPath(Section):
    """A file or folder of notes beside the workspace's, and which of its files count."""

    path: str
    include: Globs = ()
    exclude: Globs = ()


def _form_of_path(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    return "table" if isinstance(value, Mapping | ExtraPath) else None


#: A path, or a table when only some of its files count. The tags make an error name the written form only.
AnyExtraPath = Annotated[
    Annotated[str, Tag("text")] | Annotated[ExtraPath, Tag("table")],
    Discriminator(
        _form_of_path,
        custom_error_type="extra_path",
        custom_error_message="Must be a path, or a table with path, include and exclude",
    ),
]
