"""The sections of the settings that all agents of a home share: its store, its queue, its processes and their ports."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from schemas.settings_section import Section


class Cache(Section):
    """The embedding cache, shared by all agents of a host."""

    enabled: bool = Field(True, description="Keep every embedding that a provider returned.")
    max_entries: int | None = Field(
        None, ge=1, description="Upper bound of cached embeddings, least recently used first; unset means unbounded."
    )


class StoreVector(Section):
    """The sqlite-vec extension."""

    enabled: bool = Field(True, description="Keep vectors at all; off means keywords only.")
    extension_path: Path | None = Field(
        None, description="Path of the sqlite-vec library when the installed one should not be used."
    )


class StoreSettings(Section):
    """Where indexes live."""

    url: str | None = Field(None, description="Database of a fleet; unset means one SQLite folder per agent.")
    path: Path | None = Field(None, description="Folder of the indexes; unset means <home>/indexes.")
    vector: StoreVector = StoreVector()


class Auth(Section):
    """Who may ask."""

    trust_loopback: bool = Field(False, description="With several agents, let every local process ask for any agent.")


class Broker(Section):
    """The queue's server."""

    url: SecretStr | None = Field(
        None, description="Redis or Valkey URL; unset means a private Valkey under <home>/broker."
    )
    namespace: str | None = Field(
        None, pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Prefix of all keys; unset means one made for this home."
    )


class Service(Section):
    """The query service."""

    host: str = Field("127.0.0.1", description="Address that the query service listens on.")
    port: int = Field(7373, ge=0, le=65535, description="Port that the query service listens on; 0 picks a free one.")


class Hooks(Section):
    """Where agents' hooks may be sent by HTTP."""

    host: str = Field("127.0.0.1", description="Address that the producers listen on for hooks.")
    port: int | None = Field(
        None, ge=0, le=65535, description="Port for hooks; unset means none is opened, 0 picks a free one."
    )


class Workers(Section):
    """The worker pool of `up` and `work`."""

    host: str = Field("127.0.0.1", description="Address on which a worker process tells its metrics and health.")
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port for them: of `up`'s first worker process, the others follow; unset means none is opened.",
    )
    processes: int = Field(1, ge=1, le=64, description="Worker processes that `up` starts.")
    threads: int = Field(2, ge=1, le=64, description="Jobs of one queue that a worker process runs at a time.")
    stalled_after_seconds: float = Field(
        120.0,
        gt=0,
        description="`/readyz` of workers and of `up` fails when work waits and nothing was finished for so long. Like "
        "`status` and `doctor`, it names a job that has been at one step for so long.",
    )


class Up(Section):
    """The process of `up` that looks after the others."""

    host: str = Field("127.0.0.1", description="Address on which `up` tells its health.")
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port for `/healthz` and `/readyz` of all that `up` runs; unset means none is opened.",
    )


class Tracing(Section):
    """Traces by OpenTelemetry."""

    enabled: bool = Field(
        False, description="Send traces, to where OpenTelemetry's own variables say; needs the extra otel."
    )


class Credentials(Section):
    """Provider keys from the environment. Never read from a file that recalld writes, never printed."""

    openai: SecretStr | None = None
    gemini: SecretStr | None = None
    voyage: SecretStr | None = None
    mistral: SecretStr | None = None
    ollama: SecretStr | None = None
    deepinfra: SecretStr | None = None
