"""Connection to the broker's server: its client, its refusals, its facts, and the namespace of a home within it."""

from __future__ import annotations

import copy
import re
import secrets
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from inspect import isfunction
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import dramatiq
import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool, SentinelManagedConnection

from memory.http.whole_files import create_whole
from memory.status.run_files import socket_path
from schemas.errors import BrokerUnavailable, UserError
from schemas.settings import Settings
from schemas.status import BrokerState

T = TypeVar("T")

#: A word made once for a home. Homes with an empty word would share one namespace.
_WORD = re.compile(r"[!-~]{1,200}")

#: Seconds for a TLS handshake, which is two or three round trips.
HANDSHAKE_SECONDS = 2.0

#: URL of servers behind Redis Sentinel: scheme, user and password, sentinels, name of the primary, the rest.
_SENTINEL = re.compile(r"(sentinels?)://([^@/]*@)?([^@/?#]+)/([^/?#]+)(.*)")

_SENTINEL_PORT = 26379

_NAMED = "the broker named by REDIS_URL (broker.url)"

#: Factor by which memory may exceed its limit for a moment, while a server evicts keys.
_OVERDRAWN = 1.05

#: Seconds that a caller which needs the broker waits for an answer.
PATIENT_SECONDS = 30.0

#: Seconds that a caller which can go on without the broker waits for an answer, retries included.
IMPATIENT_SECONDS = 1.0

#: Seconds without requests of an impatient client after the broker did not answer: each may take a second to fail.
REST_SECONDS = 2.0


class CircuitBreaker(Retry):
    """Retry policy of a client, with a circuit breaker that all its connections share. Thread-safe.

    After a failure of the connection, requests fail at once for `rest_seconds`, with the same error.
    """

    def __init__(
        self, *, rest_seconds: float = REST_SECONDS, retries: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(ExponentialBackoff(cap=0.2, base=0.02), retries)
        self._rest_seconds = rest_seconds
        self._clock = clock
        self._open: tuple[float, Exception] | None = None

    def __deepcopy__(self, memo: object) -> CircuitBreaker:
        """Return the policy itself: redis-py copies it for each connection."""
        return self

    def call_with_retry(self, do: Callable[[], T], fail: Callable[..., Any], *more: Any, **options: Any) -> T:
        """See `Retry.call_with_retry`. Errors that a server answers with leave the circuit closed."""
        failure = self._open
        if failure is not None and self._clock() < failure[0]:
            raise copy.copy(failure[1])
        try:
            answer = super().call_with_retry(do, fail, *more, **options)
        except (redis.ConnectionError, redis.TimeoutError, TlsFailed, OSError) as error:
            self._open = self._clock() + self._rest_seconds, error.with_traceback(None)
            raise
        self._open = None
        return answer


def connect(
    settings: Settings, *, answer_seconds: float = PATIENT_SECONDS, circuit: CircuitBreaker | None = None
) -> BrokerClient:
    """Return a client of the configured server, else of the private one. Does not connect yet.

    The client retries a broken connection at once, and a second time with a long `answer_seconds`. Then it raises
    `BrokerAway`. A client with a short one has a `circuit` breaker.
    """
    patient = answer_seconds > IMPATIENT_SECONDS
    url = settings.broker.url.get_secret_value() if settings.broker.url else f"unix://{socket_path(settings.home)}"
    options = {
        "socket_connect_timeout": min(2.0, answer_seconds),
        "socket_timeout": answer_seconds if patient else answer_seconds / 2,
        "retry": Retry(ExponentialBackoff(cap=0.2, base=0.02), retries=2) if patient else circuit or CircuitBreaker(),
    }
    try:
        behind = _SENTINEL.fullmatch(url)
        pool = _sentinel_pool(behind, options) if behind is not None else ConnectionPool.from_url(url, **options)
    except ValueError as error:
        raise UserError(f"broker.url (or REDIS_URL) is not a Redis URL: {error}", exit_code=2) from None
    if pool.connection_class is redis.SSLConnection:
        pool.connection_class = TlsConnection
    client: BrokerClient = BrokerClient.from_pool(pool)  # type: ignore[assignment] # redis-py names its own class
    return client


def _sentinel_pool(url: re.Match[str], options: dict[str, Any]) -> ConnectionPool:
    """Return a pool of connections to the server that the sentinels name as the primary at each connect.

    The options of a Redis URL are those of the primary, and of TLS with both. `sentinel_username` and
    `sentinel_password` are those of the sentinels. Raises ValueError.
    """
    scheme, user, hosts, primary, rest = url.groups(default="")
    is_tls = scheme == "sentinels"
    # redis-py reads user, database and options as those of a single server.
    of_primary: dict[str, Any] = parse_url(f"{'rediss' if is_tls else 'redis'}://{user}primary{rest}")  # type: ignore[no-untyped-call]
    of_sentinels = {name: of_primary.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    of_sentinels |= {name: of_primary[name] for name in of_primary if name.startswith("ssl_")}
    # A sentinel that is away must not use up the time for the next one, nor count for the circuit breaker.
    seconds, no_retry = min(2.0, options["socket_timeout"]), Retry(NoBackoff(), 0)
    of_sentinels |= {"ssl": is_tls, "retry": no_retry, "socket_timeout": seconds, "socket_connect_timeout": seconds}
    places = [urlsplit(f"//{place}") for place in hosts.split(",")]
    addresses = [(place.hostname or "", place.port or _SENTINEL_PORT) for place in places]
    of_primary["connection_class"] = SentinelTlsConnection if is_tls else SentinelManagedConnection
    sentinels = Sentinel(addresses, sentinel_kwargs=of_sentinels)  # type: ignore[no-untyped-call] # redis has no types here
    pool: ConnectionPool = SentinelConnectionPool(unquote(primary), sentinels, **{**of_primary, **options})  # type: ignore[no-untyped-call]
    return pool


def namespace(settings: Settings, *, reads_only: bool = False) -> str:
    """Return the prefix under which this home keeps its keys, so that homes can share one server.

    Without `broker.namespace` it is a random name, made once and kept in the home. A caller that only reads keeps none:
    a home without one has no keys yet. All homes of a fleet have one queue: the name comes from their database.
    """
    if settings.broker.namespace:
        return settings.broker.namespace
    if settings.store.url is not None:
        from memory.store.postgres.connection import Database

        return Database.of(settings.store).name()
    if reads_only and not (settings.home / "namespace").exists():
        return secrets.token_hex(8)
    try:
        return made_once(settings.home / "namespace")
    except OSError as error:
        raise UserError(
            f"cannot use {settings.home / 'namespace'}: {error.strerror}; repair that, or choose another folder with "
            "--home or RECALLD_HOME"
        ) from None


def made_once(path: Path) -> str:
    """Return the random word in a file of the home. Make a missing file, and set a damaged one aside.

    Raises:
        OSError: the file cannot be read or written.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        word = ""
        with suppress(IsADirectoryError, PermissionError):
            word = path.read_text(encoding="ascii", errors="replace").strip()
        if _WORD.fullmatch(word):
            return word
        path.rename(path.with_name(f"damaged-{path.name}-{time.time_ns()}"))
    create_whole(path, secrets.token_hex(8).encode())  # if another process was first, its word counts
    return path.read_text(encoding="ascii").strip()


class BrokerAway(BrokerUnavailable, dramatiq.ConnectionClosed):
    """Failure of a request to the broker: the one error of a `BrokerClient`.

    Dramatiq takes it for a lost connection and connects again, so that a refusal (a full disk, a replica) passes like
    one. `refusal`: the server's refusal and its remedy in one sentence, None for a server that is away or failing.
    `answered`: the server answered, with an error.
    """

    def __init__(self, message: str, *, refusal: str | None = None, answered: bool = False) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.answered = answered


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except redis.exceptions.NoScriptError:
        raise  # redis-py loads the script
    except redis.RedisError as error:
        refusal = _refusal(error)
        message = refusal or f"the broker does not answer: {error}"
        raise BrokerAway(message, refusal=refusal, answered=isinstance(error, redis.ResponseError)) from error


#: Mark of `while_away` without an answer for the methods that are not named.
_RAISES: Final = object()


def while_away(*, others: object = _RAISES, **answers: object) -> Callable[[T], T]:
    """Return a decorator of a class: while the broker is away, the named methods return these answers.

    All `others` that are public return one answer, or raise `BrokerAway` if none is given.
    """

    def answering(method: Callable[..., object], answer: object) -> Callable[..., object]:
        @wraps(method)
        def call(*args: object, **kwargs: object) -> object:
            try:
                return method(*args, **kwargs)
            except BrokerAway:
                return answer

        return call

    def decorate(port: T) -> T:
        methods = {name: method for name, method in vars(port).items() if isfunction(method) and name[0] != "_"}
        for name in answers if others is _RAISES else methods:
            setattr(port, name, answering(methods[name], answers.get(name, others)))
        return port

    return decorate


class BrokerClient(redis.Redis):
    """Client whose requests, pipelines and subscriptions raise `BrokerAway` for every error of redis-py."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """See `redis.Redis`."""
        with _translated():
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> redis.client.Pipeline:  # noqa: FBT001, FBT002 - redis-py's signature
        """See `redis.Redis`."""
        return _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)

    def pubsub(self, **options: Any) -> redis.client.PubSub:
        """See `redis.Redis`."""
        return _Subscription(self.connection_pool, **options)


class _Pipeline(redis.client.Pipeline):
    def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002 - redis-py's signature
        with _translated():
            return super().execute(raise_on_error)


class _Subscription(redis.client.PubSub):
    def execute_command(self, *args: Any) -> None:
        with _translated():
            super().execute_command(*args)  # type: ignore[no-untyped-call]

    def get_message(self, ignore_subscribe_messages: bool = False, timeout: float = 0.0) -> Any:  # noqa: FBT001, FBT002 - redis-py's signature
        with _translated():
            return super().get_message(ignore_subscribe_messages, timeout)


class TlsFailed(redis.RedisError):
    """Raised for a failed TLS handshake, which is not tried again. The message has the remedy."""


class TlsConnection(redis.SSLConnection):
    """TLS connection with a shorter timeout for its handshake: a server without TLS never answers one."""

    def _connect(self) -> Any:
        patient = self.socket_timeout
        self.socket_timeout = min(HANDSHAKE_SECONDS, patient or HANDSHAKE_SECONDS)
        try:
            connected = super()._connect()  # type: ignore[no-untyped-call] # redis has no types here
        except ssl.SSLCertVerificationError as error:
            raise TlsFailed(
                f"{_NAMED} shows a certificate that is not trusted ({error.verify_message}): name the host that it is "
                "for, and its authority's file with ?ssl_ca_certs=FILE in the URL"
            ) from error
        except (ssl.SSLError, TimeoutError) as error:
            raise TlsFailed(
                f"{_NAMED} does not answer over TLS: name its TLS port, or write redis:// instead of rediss:// if it "
                "speaks none"
            ) from error
        finally:
            self.socket_timeout = patient
        connected.settimeout(patient)
        return connected


class SentinelTlsConnection(SentinelManagedConnection, TlsConnection):
    """TLS connection to the primary that sentinels name."""


def _refusal(error: redis.RedisError) -> str | None:
    if isinstance(error, TlsFailed):
        return str(error)
    if isinstance(error, redis.AuthenticationError):  # which is a `redis.ConnectionError`, too
        return (
            f"{_NAMED} answers and refuses the user or password ({str(error).rstrip('.')}): correct them in the URL "
            "(redis://USER:PASSWORD@HOST), and start again what uses it"
        )
    if isinstance(error, redis.exceptions.NoPermissionError):
        return f"{_NAMED} answers and does not permit its user what recalld needs ({error}): correct its ACL there"
    return None


def broker_facts(client: BrokerClient) -> BrokerState:
    """Ask the server for its version, persistence and limits. Raises BrokerAway."""
    server: Any = client
    info = {
        **server.info("server"),
        **server.info("persistence"),
        **server.info("memory"),
        **server.info("replication"),
    }
    valkey = "valkey_version" in info
    name = info.get("server_name", "valkey") if valkey else "redis"
    version = info["valkey_version"] if valkey else info.get("redis_version", "?")
    refuses = warning = _cannot_write(info)
    if info.get("aof_enabled"):
        synced = {"everysec": "every second", "always": "at every write", "no": "when the system likes"}
        persistence = f"append-only file, synced {synced.get(_setting(server, 'appendfsync'), 'at times')}"
    elif _setting(server, "save"):
        persistence = "snapshots; what came since the last one is lost in a crash"
    else:
        persistence = "none"
        warning = refuses or (
            "the broker keeps nothing on disk: after it crashes, everything is compared anew and the usage figures are "
            "lost; set appendonly yes there"
        )
    if warning is None and info.get("maxmemory") and info.get("maxmemory_policy", "noeviction") != "noeviction":
        # Only the next comparison finds lost marks.
        warning = "the broker may throw keys away when its memory is full; set maxmemory-policy noeviction there"
    return BrokerState(
        reachable=True,
        private=False,
        server=f"{name} {version}",
        persistence=persistence,
        warning=warning,
        writable=refuses is None,
    )


def _cannot_write(info: dict[str, Any]) -> str | None:
    """Return the reason why a server that answers takes no writes; None if it takes them."""
    limit, used = int(info.get("maxmemory") or 0), int(info.get("used_memory") or 0)
    # A server that evicts keys refuses only when eviction is not enough.
    allowed = limit if info.get("maxmemory_policy") == "noeviction" else limit * _OVERDRAWN
    if info.get("role") == "slave":
        return "the broker is a read-only replica: name the primary in broker.url (or REDIS_URL)"
    if info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok":
        return "the broker cannot write its append-only file, so that it takes nothing new: free space on its disk"
    if limit and used >= allowed:
        return "the broker's memory is full, so that it takes nothing new: raise maxmemory there"
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return "the broker cannot write its snapshot, and may take nothing new: free space on its disk"
    return None


def _setting(client: Any, name: str) -> str:
    """Return a setting of the server; empty if a hosted server refuses to show it."""
    try:
        return str(client.config_get(name).get(name, ""))
    except BrokerAway as error:
        if error.answered:
            return ""
        raise
