"""`recalld search`: find something in memory."""

from __future__ import annotations

from typing import Any

import click

from recalld.invocation import Invocation, pass_invocation
from recalld.local.fallback import Absence, Answer, ask, print_json, remark
from recalld.render.terminal_text import printable, printable_name

NOTHING_FOUND = 3


@click.command("search")
@click.argument("words", nargs=-1, required=True, metavar="QUERY...")
@click.option("-n", "--max-results", type=click.IntRange(1, 100), metavar="N", help="How many results. [6]")
@click.option("--min-score", type=click.FloatRange(0, 1), metavar="X", help="Leave out what scores below. [0.35]")
@click.option("--source", "sources", multiple=True, type=click.Choice(["memory", "sessions"]), help="Only this source.")
@click.option("--session-key", metavar="KEY", help="The session that asks, for scope rules.")
@click.option("--wait-ms", type=click.IntRange(0, 60_000), metavar="MS", help="Wait for notes not yet indexed.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@pass_invocation
def command(
    invocation: Invocation,
    *,
    words: tuple[str, ...],
    max_results: int | None,
    min_score: float | None,
    sources: tuple[str, ...],
    session_key: str | None,
    wait_ms: int | None,
    as_json: bool,
) -> int:
    """Search an agent's memory by meaning and by word.

    Through the running service; when none runs, straight from the index, by keywords only.
    """
    asked: dict[str, Any] = {
        "max_results": max_results,
        "min_score": min_score,
        "sources": list(sources) or None,
        "session_key": session_key,
        "wait_ms": wait_ms,
    }
    query = " ".join(words)

    def directly(absence: Absence) -> dict[str, Any]:
        from recalld.local import answers

        return answers.search(invocation, {"query": query, **asked}, absence=absence)

    answer = ask(
        invocation,
        service=lambda client: client.search(query, agent=invocation.agent, **asked),
        otherwise=directly,
    )
    if as_json:
        print_json(answer)
    else:
        _print(answer)
    if answer.get("error"):
        return 1
    return 0 if answer["results"] else NOTHING_FOUND


def _print(answer: Answer) -> None:
    for number, result in enumerate(answer["results"]):
        place = f"{printable_name(result['path'])}:{result['startLine']}-{result['endLine']}"
        click.echo(("\n" if number else "") + click.style(place, fg="cyan", bold=True), nl=False)
        click.secho(f"  {result['score']:.2f}", dim=True)
        for line in printable(result["snippet"]).rstrip().split("\n"):
            click.echo(f"    {line}" if line else "")
        if also := result.get("alsoIn"):
            names = ", ".join(map(printable_name, also["paths"]))
            unnamed = ", ..." if also["count"] > len(also["paths"]) else ""
            click.secho(f"    the same in {also['count']} more: {names}{unnamed}", dim=True)
    if answer.get("error"):
        remark(answer["error"] + (f"; {answer['action']}" if answer.get("action") else ""))
    elif not answer["results"]:
        remark("this memory is switched off" if answer.get("disabled") else "nothing found")
    for missing in answer.get("degraded", ()):
        remark(missing)
    behind = answer.get("pending", {}).get("documents", 0)
    if behind:
        remark(f"{behind} changed {'note is' if behind == 1 else 'notes are'} not indexed yet")
