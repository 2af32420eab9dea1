"""Telemetry port of a process: `/metrics`, `/healthz` and further routes, such as `/readyz`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from memory.http.loopback import is_loopback
from memory.http.origin_guard import OriginGuard
from memory.http.server import Bounds, ServerThread
from schemas.status import BrokerState

log = structlog.get_logger(__name__)

#: Limits of the port for its clients, which are probes and collectors of metrics.
BOUNDS = Bounds(connections=32, head_seconds=5.0, body_seconds=5.0, answer_seconds=5.0)

#: Seconds for running requests after a stop.
_GRACE_SECONDS = 1


#: Answers one path, in a thread of its own. An error becomes a 500 and is logged.
Route = Callable[[], Response]


class TelemetryServer(ServerThread):
    """Server that listens from the moment it is made, and answers between `start` and `stop`.

    The port shows no memory and needs no token: beyond loopback, keep it inside your own network.

    Args:
        host: where to listen; on loopback, only loopback names are answered to.
        port: 0 takes a free one.
        metrics: the process's metrics in Prometheus text format; without, there is no `/metrics`.
        routes: further paths, each with its route.
        section: of the settings, named in the error when the port is not available.
        bounds: of clients.

    Raises, when made:
        UserError: the port is taken, or the address is not this machine's.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        metrics: Callable[[], bytes] | None = None,
        routes: Mapping[str, Route] | None = None,
        section: str = "workers",
        bounds: Bounds = BOUNDS,
    ) -> None:
        all_routes: dict[str, Route] = {"/healthz": lambda: JSONResponse({"status": "ok"}), **(routes or {})}
        if metrics is not None:
            all_routes["/metrics"] = lambda: Response(metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

        async def pages(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                await (await _answer(all_routes, scope))(scope, receive, send)

        # Beyond loopback any name is answered to: a load balancer's probe may send none.
        guarded: ASGIApp = OriginGuard(pages, host=host) if is_loopback(host) else pages
        super().__init__(
            guarded, host, port, section=section, grace_seconds=_GRACE_SECONDS, failed=_failed, bounds=bounds
        )

    def start(self) -> None:
        """Start answering."""
        super().start()
        log.info("telemetry_listening", port=self.port)


def readiness(
    broker_state: Callable[[], BrokerState],
    stalled_seconds: Callable[[], float],
    *,
    stalled_after_seconds: float,
    problems: Callable[[], Sequence[str]] = lambda: (),
) -> Route:
    """Return the route of `/readyz` of workers and of `up`.

    It answers 200, or 503 when there are `problems`, when the broker takes nothing new, or when work has been waiting
    for longer than `stalled_after_seconds` and no job finished. Jobs of all workers of the namespace count, so an idle
    worker is ready while others finish some.
    """

    def answer() -> JSONResponse:
        reasons, broker = [*problems()], broker_state()
        if not (broker.reachable and broker.writable):
            reasons.append(broker.warning or "the broker does not answer")
        elif (stalled := stalled_seconds()) > stalled_after_seconds:
            reasons.append(
                f"work has been waiting for {stalled:.0f} s and nothing was finished; `recalld status` says why"
            )
        if reasons:
            return JSONResponse({"status": "not ready", "error": "; ".join(reasons)}, 503)
        return JSONResponse({"status": "ready"})

    return answer


async def _answer(routes: Mapping[str, Route], scope: Scope) -> Response:
    if scope["method"] != "GET":
        return JSONResponse({"error": f"Unsupported method ({scope['method']!r})"}, 501)
    route = routes.get(scope["path"])
    if route is None:
        return JSONResponse({"error": f"there is only {', '.join(sorted(routes))} here"}, 404)
    try:
        return await asyncio.to_thread(route)
    except Exception:
        log.exception("telemetry_failed")
        return JSONResponse({"error": "the request failed; the log says why"}, 500)


def _failed(error: Exception) -> None:
    log.error("telemetry_failed", exc_info=error)
