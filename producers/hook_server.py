"""Hooks by HTTP: `POST /v1/hooks/<program>` with the JSON of the program's hook.

A sender needs the same rights as a client of the query service: with several agents, or beyond loopback, the agent's
token. The token names the agent of the hook. The answer is 202 once the producers have its event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from memory.http.authorization import Authorizer, check_tokens
from memory.http.origin_guard import OriginGuard
from memory.http.refusals import install
from memory.http.server import Bounds, ServerThread
from memory.status.run_files import remove_hooks_state, write_hooks_state
from producers.hook_events import PROGRAMS, HookUnreadable, UnclaimedHook, event_of, read_hook, read_payload
from producers.session_ends import EndUnkept
from schemas.conditions import ConditionCode
from schemas.ports import ConditionReporter, Event
from schemas.settings import Settings

log = structlog.get_logger(__name__)

#: Seconds that requests get to finish after a stop.
GRACE_SECONDS = 2


class HookServer(ServerThread):
    """Server of hooks. The constructor opens the port; requests are answered between `start` and `stop`.

    Every event goes to `handle`, in a thread of its own. The constructor raises:
        UserError: the port is taken, the address is not this machine's, or tokens are needed and missing.
    """

    def __init__(
        self,
        settings: Settings,
        port: int,
        handle: Callable[[Event], None],
        reporter: ConditionReporter,
        *,
        bounds: Bounds | None = None,
    ) -> None:
        host = settings.hooks.host
        self._settings, self._handle, self._reporter = settings, handle, reporter
        check_tokens(settings, host=host, key="hooks.host")
        self._authorizer = Authorizer.of(settings, host=host)
        app = FastAPI(title="recalld hooks", docs_url=None, redoc_url=None, openapi_url=None)
        install(app)
        app.add_middleware(OriginGuard, host=host)
        app.add_api_route("/v1/hooks/{program}", self._take, methods=["POST"])
        super().__init__(
            app, host, port, section="hooks", grace_seconds=GRACE_SECONDS, failed=self._report_end, bounds=bounds
        )
        address = f"[{host}]" if ":" in host else host
        self.url = f"http://{address}:{self.port}/v1/hooks/"

    async def _take(self, program: str, request: Request) -> JSONResponse:
        authorization = request.headers.get("authorization")
        agent = self._authorizer.token_agent(authorization) if self._authorizer.tokens is not None else None
        if program not in PROGRAMS:
            raise HTTPException(404, f"hooks of {', '.join(PROGRAMS)} are taken here")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPException(415, "send the hook with Content-Type: application/json")
        try:
            hook = read_hook(program, read_payload(await request.body()))
            event = event_of(hook._replace(program=program), self._settings, agent=agent) if hook is not None else None
        except HookUnreadable as error:
            raise HTTPException(400, str(error)) from None
        except UnclaimedHook as error:
            # A program sends the hooks of all its sessions here: this is not its mistake.
            return JSONResponse({"accepted": False, "reason": str(error)}, status_code=202)
        if event is not None:
            try:
                await asyncio.to_thread(self._handle, event)
            except EndUnkept as error:
                raise HTTPException(503, f"the end of the session could not be kept: {error.strerror}") from None
        return JSONResponse({"accepted": True}, status_code=202)

    def start(self) -> None:
        """Start answering, and write the address to `<home>/run/hooks.json`."""
        super().start()
        self._reporter.resolve(ConditionCode.HOOKS_UNWRITTEN, ConditionCode.HOOKS_ENDED)
        try:
            write_hooks_state(self._settings.home, self.url)
        except OSError as error:
            self._reporter.report(ConditionCode.HOOKS_UNWRITTEN, url=self.url, error=str(error))
        log.info("hooks_listening", url=self.url)

    def stop(self) -> None:
        """Let running requests finish and close the port."""
        remove_hooks_state(self._settings.home)
        super().stop()

    def _report_end(self, error: Exception) -> None:
        log.error("hooks_failed", exc_info=error)
        self._reporter.report(ConditionCode.HOOKS_ENDED, error=str(error))
