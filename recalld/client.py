"""Ask a running recalld over HTTP. Standard library only, so that an agent's runtime can carry it.

    client = Client.at_home(Path("~/.local/share/recalld").expanduser())
    if client is not None:
        for result in client.search("which port did we give the gateway?")["results"]:
            print(result["path"], result["startLine"], result["snippet"])

Answers are the JSON objects of the HTTP interface, as dictionaries.

    ClientError
    +-- ServiceUnavailable     nobody answers at that address
    +-- RequestRefused         the service said no; `status` is the HTTP status
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class ClientError(Exception):
    """Base of what this module raises."""


class ServiceUnavailable(ClientError):
    """Nobody answers at that address, or not in time."""


class RequestRefused(ClientError):
    """The service answered with an error. `status` is the HTTP status, the message is the service's."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Talks to one query service, one connection a call. Safe to use from several threads."""

    def __init__(
        self,
        host: str,
        port: int,
        token: str | None = None,
        *,
        connect_timeout_seconds: float = 1.0,
        answer_timeout_seconds: float = 16.0,
    ) -> None:
        self.host = host
        self.port = port
        self._token = token
        self._connect_timeout_seconds = connect_timeout_seconds
        self._answer_timeout_seconds = answer_timeout_seconds

    @classmethod
    def at_home(cls, home: Path, *, agent: str | None = None) -> Client | None:
        """The client of the service that runs for this home folder, None when none says that it does.

        Takes the agent's token from `<home>/run/tokens/<agent>` when there is one.
        """
        try:
            service = json.loads((home / "run" / "service.json").read_text("utf-8"))
            host, port, pid = str(service["host"]), int(service["port"]), int(service["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        # A killed service leaves its file behind, and by now its port may be somebody else's.
        return cls(_reachable(host), port, _token(home, agent)) if _alive(pid) else None

    def search(
        self,
        query: str,
        *,
        agent: str | None = None,
        max_results: int | None = None,
        min_score: float | None = None,
        sources: Sequence[str] | None = None,
        session_key: str | None = None,
        wait_ms: int | None = None,
    ) -> dict[str, Any]:
        """Search; the answer of `POST /v1/search`.

        `min_score` is from 0 to 1; `wait_ms` waits so long at most for what was written before (None: 500).

        Raises:
            ServiceUnavailable, RequestRefused
        """
        body = {
            "query": query,
            "agent": agent,
            "maxResults": max_results,
            "minScore": min_score,
            "sources": list(sources) if sources else None,
            "sessionKey": session_key,
            "waitMs": wait_ms,
        }
        return self._call("POST", "/v1/search", body, extra_seconds=(wait_ms or 0) / 1000)

    def get(
        self,
        path: str,
        *,
        start_line: int | None = None,
        lines: int | None = None,
        agent: str | None = None,
        session_key: str | None = None,
    ) -> dict[str, Any]:
        """Read lines of a memory file; the answer of `POST /v1/get`. `start_line` counts from 1.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        body = {"path": path, "from": start_line, "lines": lines, "agent": agent, "sessionKey": session_key}
        return self._call("POST", "/v1/get", body)

    def status(self, *, agent: str | None = None, deep: bool = False) -> dict[str, Any]:
        """The answer of `GET /v1/status`; `deep` also checks whether the indexes hold together, which takes longer.

        Raises:
            ServiceUnavailable, RequestRefused
        """
        from urllib.parse import urlencode

        asked = {"agent": agent, "deep": "true" if deep else None}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return self._call("GET", "/v1/status" + (f"?{query}" if query else ""), extra_seconds=300 if deep else 0)

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, extra_seconds: float = 0.0
    ) -> dict[str, Any]:
        # Only here: without a running service nobody has to wait for these imports.
        import http.client
        import socket

        headers = {"Accept": "application/json"}
        content = None
        if body is not None:
            content = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
            headers["Content-Type"] = "application/json"
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self._connect_timeout_seconds)
        try:
            connection.connect()
            assert isinstance(connection.sock, socket.socket)  # noqa: S101 - connect() made it
            connection.sock.settimeout(self._answer_timeout_seconds + extra_seconds)
            connection.request(method, path, body=content, headers=headers)
            response = connection.getresponse()
            status, text = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServiceUnavailable(
                f"no recalld service answers at {self.host}:{self.port} ({error or type(error).__name__})"
            ) from error
        finally:
            connection.close()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if status >= 400:
            raise RequestRefused(_reason(answer) or f"the service answered with status {status}", status=status)
        if not isinstance(answer, dict):
            raise ServiceUnavailable(f"what answers at {self.host}:{self.port} is not recalld")
        return answer


def _reason(answer: object) -> str | None:
    """The sentence in an error answer, whichever of the usual shapes it has."""
    if not isinstance(answer, dict):
        return None
    for name in ("error", "detail", "message"):
        found = answer.get(name)
        if isinstance(found, str):
            return found
        if isinstance(found, list) and found and isinstance(found[0], dict):
            place = ".".join(str(part) for part in found[0].get("loc", ()) if part != "body")
            return f"{place}: {found[0].get('msg', 'is not valid')}".removeprefix(": ")
    return None


def _reachable(host: str) -> str:
    """Where to call a service that listens everywhere."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - not bound to


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's process
    return True


def agents_with_tokens(home: Path) -> list[str]:
    """The agents whose tokens this user may read, in the order of their names; empty where no tokens are needed."""
    try:
        return sorted(entry.name for entry in (home / "run" / "tokens").iterdir() if not entry.name.startswith("."))
    except OSError:
        return []


def _token(home: Path, agent: str | None) -> str | None:
    known = agents_with_tokens(home)
    # Only names from the folder's own list: what a caller passes is never made a path.
    name = agent if agent is not None else known[0] if len(known) == 1 else None
    if name not in known or name is None:
        return None
    try:
        return (home / "run" / "tokens" / name).read_text("utf-8").strip() or None
    except OSError:
        return None
