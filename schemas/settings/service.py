"""Tables of the settings file on processes: store, broker, query service, hooks, workers, supervisor, traces."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from schemas.settings.section import Section


class StoreVector(Section):
    """The sqlite-vec extension, which writes vectors where it is there."""

    enabled: bool = Field(True, description="Keep vectors at all; off means keywords only.")
    extension_path: Path | None = Field(
        None, description="Path of the sqlite-vec library when the installed one should not be used."
    )


class StoreSettings(Section):
    """Place of the indexes."""

    url: SecretStr | None = Field(
        None, description="URL of a fleet's PostgreSQL with pgvector, postgresql://...; unset means SQLite."
    )
    migrate_url: SecretStr | None = Field(
        None, description="URL for `recalld migrate` of a fleet's PostgreSQL, with the user who owns the tables."
    )
    path: Path | None = Field(None, description="Folder of the indexes; unset means <home>/indexes.")
    vector: StoreVector = StoreVector()

    @field_validator("url")
    @classmethod
    def _is_postgresql(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None or not url.get_secret_value():
            return None
        if not url.get_secret_value().startswith(("postgresql://", "postgres://")):
            raise ValueError(
                "it is not the URL of a PostgreSQL, postgresql://...; correct it, or remove the key to keep indexes in "
                "SQLite"
            )
        return url


class Broker(Section):
    """Server of the queue."""

    url: SecretStr | None = Field(
        None,
        description="Redis or Valkey URL, also sentinel://HOST:26379,HOST:26379/PRIMARY (sentinels:// with TLS); unset "
        "means a private Valkey under <home>/broker.",
    )
    namespace: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Prefix of all keys; unset means one made for this home, or for the database of a fleet.",
    )


class Service(Section):
    """The query service."""

    host: str = Field("127.0.0.1", description="Address that the query service listens on.")
    port: int = Field(7373, ge=0, le=65535, description="Port that the query service listens on; 0 picks a free one.")


class Auth(Section):
    """Access to the query service."""

    trust_loopback: bool = Field(False, description="With several agents, let every local process ask for any agent.")


class Ingest(Section):
    """The door of a fleet, by which machines send documents."""

    host: str = Field("127.0.0.1", description="Address that `recalld ingest` listens on.")
    port: int = Field(7377, ge=0, le=65535, description="Port that `recalld ingest` listens on; 0 picks a free one.")
    behind_tls_proxy: bool = Field(
        False, description="Listen beyond this machine: a proxy before it ends TLS, and nothing else reaches it."
    )


class Fleet(Section):
    """The fleet to which this machine sends its documents, in place of indexing them."""

    url: str | None = Field(
        None, description="Address of the fleet's door, https://...; `watch` and `backfill` send documents there."
    )
    token: SecretStr | None = Field(None, description="Access token with the right ingest, of this machine alone.")
    agents: dict[str, str] = Field(
        default_factory=dict,
        description="Names of this machine's agents in the fleet; by default their ids, for a single agent the token's "
        "first agent.",
    )


class Hooks(Section):
    """HTTP address for agents' hooks."""

    host: str = Field("127.0.0.1", description="Address that the producers listen on for hooks.")
    port: int | None = Field(
        None, ge=0, le=65535, description="Port for hooks; unset means none is opened, 0 picks a free one."
    )


class Workers(Section):
    """The worker pool of `up` and `work`."""

    host: str = Field("127.0.0.1", description="Address of a worker process's metrics and health.")
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of `up`'s first worker process, the others use the next ones; unset means none is opened.",
    )
    processes: int = Field(1, ge=1, le=64, description="Worker processes that `up` starts.")
    threads: int = Field(2, ge=1, le=64, description="Jobs of one queue that a worker process runs at a time.")
    stalled_after_seconds: float = Field(
        120.0,
        gt=0,
        description="`/readyz` of workers and of `up` fails when work waits and none was finished for this time. Like "
        "`status` and `doctor`, it names any thread that is stuck at one step for this time.",
    )


class Up(Section):
    """Supervising process of `up`."""

    host: str = Field("127.0.0.1", description="Address of `up`'s health.")
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
