"""One token per agent: who has it may ask for that agent's memory, and for no other's."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

#: Relative to the home folder: one file per agent, mode 0600, in a folder of mode 0700.
TOKENS_PATH = Path("run") / "tokens"

#: Relative to the home folder: opens `/metrics` with the numbers of all agents, and nothing else.
METRICS_TOKEN_PATH = Path("run") / "metrics-token"

_TOKEN_BYTES = 32


def ensure_tokens(home: Path, agents: Iterable[str]) -> dict[str, str]:
    """Return every agent's token, making those that are missing.

    Raises:
        OSError: the home folder is not writable and a token is missing.
    """
    folder = home / TOKENS_PATH
    tokens = {}
    for agent in agents:
        token = _read(folder / agent)
        if token is None:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
            token = _make(folder / agent)
        tokens[agent] = token
    return tokens


def read_tokens(home: Path, agents: Iterable[str]) -> dict[str, str]:
    """Return the tokens that exist."""
    folder = home / TOKENS_PATH
    found = {agent: _read(folder / agent) for agent in agents}
    return {agent: token for agent, token in found.items() if token is not None}


def ensure_metrics_token(home: Path) -> None:
    """Make the token of those who collect metrics, if there is none. Raises OSError like `ensure_tokens`."""
    if read_metrics_token(home) is None:
        (home / METRICS_TOKEN_PATH).parent.mkdir(parents=True, exist_ok=True)
        _make(home / METRICS_TOKEN_PATH)


def read_metrics_token(home: Path) -> str | None:
    """Return the token of those who collect metrics, None when there is none."""
    return _read(home / METRICS_TOKEN_PATH)


def agent_of(token: str, tokens: Mapping[str, str]) -> str | None:
    """Whose token this is, compared in constant time; None when nobody's."""
    given = token.encode()
    owner = None
    for agent, known in tokens.items():
        if hmac.compare_digest(known.encode(), given):
            owner = agent
    return owner


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def _make(path: Path) -> str:
    """Write a new token; when another process was faster, its token is the one."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{token}\n")
        if _read(path) is None:
            path.unlink(missing_ok=True)
        try:
            os.link(draft, path)
        except FileExistsError:
            return _read(path) or token
    finally:
        draft.unlink(missing_ok=True)
    return token
