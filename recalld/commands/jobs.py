"""`recalld jobs`: what providers and workers are busy with."""

from __future__ import annotations

import click

from recalld.invocation import Invocation, json_option, pass_invocation, to_type
from schemas.errors import UserError


@click.group("jobs", invoke_without_command=True)
@json_option
@click.pass_context
def jobs(ctx: click.Context, *, as_json: bool) -> None:
    """List the batch jobs at embedding providers, and what waits and runs in the queue.

    Leaves with exit code 1 when the broker does not answer although it should.
    """
    if ctx.invoked_subcommand is not None:
        return
    from recalld.logs import configure_logs
    from recalld.runs.jobs import jobs_answer, jobs_lines
    from recalld.terminal_text import print_json

    configure_logs(level=40)
    answer = jobs_answer(ctx.ensure_object(Invocation))
    if as_json:
        print_json(answer)
    else:
        for line in jobs_lines(answer):
            click.echo(to_type(line))
    if answer["queueProblem"] is not None:
        raise UserError(answer["queueProblem"])


@jobs.command("cancel")
@click.argument("reference")
@pass_invocation
def cancel(invocation: Invocation, *, reference: str) -> None:
    """Cancel the batch job REFERENCE at its provider.

    What it did by then is kept and not paid for again; its other texts are embedded the normal way. Leaves with exit
    code 3 when there is no such job.
    """
    from recalld.runs.jobs import cancel_job

    click.echo(cancel_job(invocation, reference))
