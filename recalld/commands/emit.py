"""`recalld emit`: a hint from outside."""

from __future__ import annotations

from pathlib import Path

import click

from recalld.invocation import Invocation, pass_invocation

_KINDS = ("session-start", "reconcile", "changed")


@click.command("emit")
@click.argument("kind", type=click.Choice(_KINDS))
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@pass_invocation
def command(invocation: Invocation, *, kind: str, paths: tuple[str, ...]) -> None:
    """Tell the daemon that something happened.

    session-start: a session of the agent begins, its files are compared with the index. reconcile: compare now.
    changed: look at these files at once. Works while no daemon runs: the hint is kept and found at the next start.
    """
    from producers.spool import write_event
    from recalld.wiring import open_broker
    from schemas.errors import BrokerUnavailable
    from schemas.ports import Event

    if kind == "changed" and not paths:
        raise click.UsageError("changed needs at least one PATH")
    if kind != "changed" and paths:
        raise click.UsageError(f"{kind} takes no PATH")
    absolute = tuple(str(Path(path).absolute()) for path in paths)
    settings = invocation.settings
    broker = open_broker(settings)
    try:
        for agent in invocation.agents():
            event = Event(kind=kind, agent=agent.id, paths=absolute)
            try:
                broker.inbox.put(event)
            except BrokerUnavailable:
                write_event(settings.home, event)
    finally:
        broker.client.close()
