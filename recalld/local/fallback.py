"""Request to the running service, with this process as its fallback. Shared by the commands that read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import click

from memory.status.local_processes import is_stopped
from recalld.client import (
    Client,
    InvalidSettings,
    RequestRefused,
    ServiceTimedOut,
    ServiceUnavailable,
    ServiceUnproven,
    agents_with_tokens,
)
from recalld.client.address import running_service
from recalld.invocation import Invocation, to_type
from recalld.terminal_text import printable_json
from schemas.errors import UserError

#: A JSON object, as the service answers it.
Answer = Mapping[str, Any]


class Absence(StrEnum):
    """Reason why this process finds the answer itself."""

    NOT_RUNNING = "no service is running"
    NO_ANSWER = "the service did not answer in time"
    STOPPED = "the service's process is stopped"
    OUTDATED = "the service that runs is of an earlier version of recalld (restart `recalld up`)"
    UNPROVEN = "another program answers where the service of this home did (restart `recalld up`)"


def ask(
    invocation: Invocation, *, service: Callable[[Client], Answer], otherwise: Callable[[Absence], Answer]
) -> Answer:
    """Return the answer of this home's running service, else of this process.

    Raises:
        UserError: the service refused; the message is its own.
    """
    running = running_service(invocation.home_path)
    client = Client.at_home(invocation.home_path, agent=invocation.agent)
    absence = Absence.NOT_RUNNING
    if running is not None and running.secret is None:
        absence = Absence.OUTDATED
    elif running is not None and is_stopped(running.pid):
        absence = Absence.STOPPED  # a stopped process does not answer
    elif client is not None:
        try:
            return service(client)
        except ServiceTimedOut:
            absence = Absence.NO_ANSWER
        except ServiceUnproven:
            absence = Absence.UNPROVEN
        except ServiceUnavailable:
            pass  # it starts, stops or is gone; the index is there
        except RequestRefused as error:
            raise _said_no(invocation, error) from None
        except InvalidSettings as error:
            raise UserError(str(error), exit_code=2) from None
    return otherwise(absence)


def _said_no(invocation: Invocation, error: RequestRefused) -> UserError:
    known = agents_with_tokens(invocation.home_path)
    if error.status == 401 and invocation.agent is None and len(known) > 1:
        return UserError(f"there are several agents; say which with --agent (one of {', '.join(known)})", exit_code=2)
    if error.status == 401 and invocation.agent is not None and known and invocation.agent not in known:
        return UserError(f"--agent: no agent is called {invocation.agent!r}; known are {', '.join(known)}", exit_code=2)
    return UserError(str(error), exit_code=2 if error.status in (400, 404, 422) else 1)


def print_json(answer: Answer) -> None:
    """Print the answer as one JSON object, readable by people and machines."""
    click.echo(printable_json(answer, indent=2))


def remark(text: str) -> None:
    """Print a remark to standard error: a pipe gets the answer alone."""
    click.secho(f"recalld: {to_type(text)}", err=True, dim=True)
