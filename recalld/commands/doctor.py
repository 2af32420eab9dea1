"""`recalld doctor`: what is wrong with this machine and this home, and what to do."""

from __future__ import annotations

import click

from recalld.invocation import Invocation, pass_invocation

NOT_OK = 4


@click.command("doctor")
@click.option("--fix", is_flag=True, help="Heal what can be healed from files and cache; nothing is lost by it.")
@click.option("--online", is_flag=True, help="Also send one word to each embedding provider.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_invocation
def doctor(invocation: Invocation, *, fix: bool, online: bool, as_json: bool) -> int:
    """Look at the machine, the home and the indexes; say for each finding what to do.

    --fix removes what dead processes left, sets damaged indexes aside and builds them again, builds missing ones, and
    forgets abandoned builds. Leaves with exit code 4 while a problem is left.
    """
    from recalld.doctor.examination import answer, examine, lines
    from recalld.local.fallback import print_json
    from recalld.logs import configure_logs

    configure_logs(level=40)
    outcomes = examine(invocation, online=online, fix=fix)
    if as_json:
        print_json(answer(outcomes))
    else:
        for line in lines(outcomes):
            click.echo(line)
    return NOT_OK if any(one.is_open for one in outcomes) else 0
