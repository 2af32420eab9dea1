"""Commands that report the state of a home: `recalld status` and `recalld doctor`."""

from __future__ import annotations

import click

from recalld.invocation import NOT_OK, Invocation, examples, json_option, pass_invocation, read_workspace_option
from recalld.local import answers
from recalld.local.answers import Answer
from recalld.terminal_text import print_answer, remark


@click.command("status", epilog=examples("recalld status", "recalld status --agent main --deep"))
@click.option("--deep", is_flag=True, help="Also check the indexes, send the provider one word; takes longer.")
@read_workspace_option
@json_option
@pass_invocation
def status(invocation: Invocation, *, deep: bool, as_json: bool) -> int:
    """Compare files, index and queue, and list the conditions.

    Leaves with exit code 4 while anything is missing, stuck or failed.
    """
    from recalld.runs.status import status_lines
    from schemas.version import recalld_version

    answer = answers.status(invocation, deep=deep, on_absence=remark)
    if answer["version"] != recalld_version():
        remark(f"the query service that answers runs recalld {answer['version']}: start it again")
    print_answer(answer, status_lines(answer, resting=_is_resting(invocation, answer)), as_json=as_json)
    return 0 if answer["ok"] else NOT_OK


@click.command("doctor", epilog=examples("recalld doctor", "recalld doctor --fix"))
@click.option("--fix", is_flag=True, help="Heal what can be healed from files and cache; nothing is lost by it.")
@click.option("--online", is_flag=True, help="Also send one word to each embedding provider.")
@json_option
@pass_invocation
def doctor(invocation: Invocation, *, fix: bool, online: bool, as_json: bool) -> int:
    """Examine the machine, the home and the indexes; give a remedy for each finding.

    --fix forgets processes that exited unexpectedly, sets damaged indexes aside and rebuilds them, builds missing
    ones, and goes on with abandoned builds. Leaves with exit code 4 while a problem is left.
    """
    from recalld.doctor.examination import examine
    from recalld.doctor.finding import answer, lines
    from recalld.logs import configure_logs

    configure_logs(level=40)
    outcomes = examine(invocation, online=online, fix=fix)
    print_answer(answer(outcomes), lines(outcomes), as_json=as_json)
    return NOT_OK if any(outcome.is_open for outcome in outcomes) else 0


def _is_resting(invocation: Invocation, answer: Answer) -> bool:
    """Return True if the broker does not answer because nothing of this home that needs it runs."""
    from recalld.up.lock import has_processes

    broker = answer.get("broker", {"reachable": True})
    away = not broker["reachable"] and broker["private"] and not answer.get("processes")
    is_sender = {"sentTo" in agent["index"] for agent in answer.get("agents", ())} == {True}
    return away and (is_sender or not has_processes(invocation.home_path))
