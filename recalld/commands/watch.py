"""`recalld watch`: the producers."""

from __future__ import annotations

import click

from recalld.invocation import Invocation, pass_invocation, workspace_option
from recalld.settings.load import check_workspace
from recalld.up.lifecycle import announce_ready, stop_event, supervised_option


@click.command("watch")
@workspace_option
@supervised_option
@pass_invocation
def command(invocation: Invocation, *, supervised: bool) -> None:
    """Run only the producers: watch files and queue what changed, until Ctrl-C."""
    from memory.status.pulses import Pulses
    from producers.run import run_producers
    from recalld.logs import configure_logs
    from recalld.up.sd_notify import watchdog
    from recalld.up.settings_age import SettingsAge
    from recalld.up.traces import traced
    from recalld.wiring import answering_for, building_in, indexed_by, open_broker, running_broker
    from workers.health.heartbeat import Heartbeat

    age = SettingsAge(invocation)
    settings = invocation.settings
    for agent in invocation.agents():
        check_workspace(agent)
    stop = stop_event(supervised=supervised)
    configure_logs(process="watch")
    pulses = Pulses()
    with (
        traced(settings, "watch"),
        running_broker(settings, supervised=supervised),
        Heartbeat(settings, "watch", pulses, outdated=age),
        watchdog(pulses.problems),
    ):
        broker = open_broker(settings)
        try:
            run_producers(
                settings,
                broker.queue,
                broker.inbox,
                broker.board,
                stop,
                figures=broker.board,
                indexed=indexed_by(settings),
                answering=answering_for(settings),
                building=building_in(settings),
                on_ready=lambda: announce_ready(supervised=supervised),
                pulses=pulses,
            )
        finally:
            broker.client.close()
