"""`recalld work`: a worker process."""

from __future__ import annotations

import click

from recalld.invocation import Invocation, pass_invocation, setting_option, workspace_option
from recalld.up.lifecycle import announce_ready, stop_event, supervised_option


@click.command("work")
@workspace_option
@setting_option("--host", "workers.host", metavar="ADDRESS", help="Address for metrics and health. [127.0.0.1]")
@setting_option("--port", "workers.port", type=int, metavar="N", help="Port for metrics and health. [none]")
@supervised_option
@pass_invocation
def command(invocation: Invocation, *, supervised: bool) -> None:
    """Run only the workers: index what is queued, until Ctrl-C."""
    from memory.status.pulses import Pulses
    from recalld.logs import configure_logs
    from recalld.up.sd_notify import watchdog
    from recalld.up.settings_age import SettingsAge
    from recalld.up.traces import traced
    from recalld.wiring import running_broker
    from workers.run import run_workers

    age = SettingsAge(invocation)
    stop = stop_event(supervised=supervised)
    configure_logs(process="work")
    pulses = Pulses()
    with (
        traced(invocation.settings, "work"),
        running_broker(invocation.settings, supervised=supervised),
        watchdog(pulses.problems),
    ):
        run_workers(
            invocation.settings,
            stop,
            on_ready=lambda: announce_ready(supervised=supervised),
            pulses=pulses,
            outdated=age,
        )
