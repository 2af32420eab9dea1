"""Ask the running service, or else answer in this process. Shared by the commands that read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from recalld.client import Client, RequestRefused, ServiceUnavailable
from recalld.invocation import Invocation
from schemas.errors import UserError

Answer = TypeVar("Answer")


def ask(invocation: Invocation, *, service: Callable[[Client], Answer], otherwise: Callable[[], Answer]) -> Answer:
    """The service's answer if one runs for this home folder, else what this process finds itself.

    Raises:
        UserError: the service refused; the message is its own.
    """
    client = Client.at_home(invocation.home_path, agent=invocation.agent)
    if client is not None:
        try:
            return service(client)
        except ServiceUnavailable:
            pass  # it is just starting, stopping or gone: the index is there all the same
        except RequestRefused as error:
            raise UserError(str(error), exit_code=2 if error.status in (400, 422) else 1) from None
    return otherwise()


def print_json(answer: dict[str, Any]) -> None:
    """The answer as one JSON object, readable by people and machines."""
    click.echo(json.dumps(answer, ensure_ascii=False, indent=2))


def remark(text: str) -> None:
    """Something beside the answer: to standard error, so that a pipe gets the answer alone."""
    click.secho(f"recalld: {text}", err=True, dim=True)
