"""`recalld serve`: the query service."""

from __future__ import annotations

import click

from recalld.invocation import Invocation, pass_invocation, setting_option, workspace_option
from recalld.up.lifecycle import announce_ready, stop_event, supervised_option


@click.command("serve")
@workspace_option
@setting_option("--host", "service.host", metavar="ADDRESS", help="Address to listen on. [127.0.0.1]")
@setting_option("--port", "service.port", type=int, metavar="N", help="Port to listen on; 0 picks a free one. [7373]")
@supervised_option
@pass_invocation
def command(invocation: Invocation, *, supervised: bool) -> None:
    """Run only the query service, until Ctrl-C. It reads indexes and writes nothing."""
    from memory.service.run import serve
    from memory.status.pulses import Pulses
    from recalld.logs import configure_logs
    from recalld.up.sd_notify import watchdog
    from recalld.up.settings_age import SettingsAge
    from recalld.up.traces import traced
    from recalld.wiring import open_broker
    from workers.health.heartbeat import Heartbeat
    from workers.limits.coordination import coordinating
    from workers.queue.connection import IMPATIENT_SECONDS

    age = SettingsAge(invocation)
    settings = invocation.settings
    pulses = Pulses()
    stop = stop_event(supervised=supervised)
    configure_logs(process="serve")
    # A search has a deadline, with or without the broker.
    broker = open_broker(settings, answer_seconds=IMPATIENT_SECONDS)
    # A search waits for the producers until its own deadline.
    waiting = open_broker(settings)
    try:
        with (
            traced(settings, "serve"),
            coordinating(settings) as coordination,
            Heartbeat(settings, "serve", pulses, asking=coordination.asking, outdated=age),
            watchdog(pulses.problems),
        ):
            serve(
                settings,
                broker.board,
                inbox=waiting.inbox,
                coordinate=coordination,
                stop=stop,
                pulses=pulses,
                on_ready=lambda: announce_ready(supervised=supervised),
            )
    finally:
        broker.client.close()
        waiting.client.close()
