"""Commands that read an agent's memory: `recalld search` and `recalld get`."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from recalld.invocation import (
    NOTHING_FOUND,
    Invocation,
    examples,
    json_option,
    pass_invocation,
    read_workspace_option,
)
from recalld.local import answers
from recalld.local.answers import Answer
from recalld.terminal_text import print_answer, printable, printable_name, remark, typed_name

#: A path with the lines that search results (`:3-5`) and citations (`#L3-L5`) name after it.
_WITH_LINES = re.compile(r"(.+?)(?::(\d{1,9})(?:-(\d{1,9}))?|#L(\d{1,9})(?:-L?(\d{1,9}))?)", re.DOTALL)

#: Columns of a pipe, and those that a title and a sentence get at least.
_PIPE_COLUMNS, _LEAST_TITLE = 100, 20

#: Lines that `--lines` takes at most.
_MOST_LINES = 100_000


@click.command(
    "search",
    epilog=examples(
        'recalld search "which port does staging use"',
        "recalld search FP-131 --max-results 3 --source memory --long",
        'recalld search "who decided on retries" --also "retry policy decision" --also "backoff limits agreed"',
        "recalld search release checklist --agent research --json",
    ),
)
@click.argument("words", nargs=-1, required=True, metavar="QUERY...")
@click.option("--also", "queries", multiple=True, metavar="TEXT", help="The question in other words, up to 4 times.")
@click.option("-n", "--max-results", type=click.IntRange(1, 100), metavar="N", help="How many results. [6]")
@click.option("--min-score", type=click.FloatRange(0, 1), metavar="X", help="Leave out what scores below. [0.35]")
@click.option("--source", "sources", multiple=True, type=click.Choice(["memory", "sessions"]), help="Only this source.")
@click.option("--since", metavar="TIME", help='Only from then on: 2026-11-23, 7d, 2w, "last week".')
@click.option("--until", metavar="TIME", help="Only up to then, the named day included.")
@click.option("--session-key", metavar="KEY", help="The session that asks, for scope rules.")
@click.option("--wait-ms", type=click.IntRange(0, 60_000), metavar="MS", help="Wait for notes not yet indexed.")
@click.option("--long", "form", flag_value="long", help="Print whole passages.")
@click.option("--short", "form", flag_value="short", help="Print only paths and lines, as `recalld get` takes them.")
@read_workspace_option
@json_option
@pass_invocation
def search(
    invocation: Invocation,
    *,
    words: tuple[str, ...],
    queries: tuple[str, ...],
    sources: tuple[str, ...],
    form: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Search memory by meaning and by word: that of --agent, else of all agents.

    A result is two lines: title, path and lines with a score from 0 to 1; then its best sentence. Below a conversation
    stands the command that resumes it.

    Through the running service; when none runs, straight from the index. A remote provider then embeds the query with
    one request of this command, and a local model has two seconds to load; else the search is by keywords only.
    """
    query = " ".join(words).strip()
    if not query:
        raise click.UsageError("the query is empty; say what to search for")
    if len(queries) > 4:
        raise click.UsageError(f"--also is given {len(queries)} times; give it at most 4 times")
    options |= {"sources": list(sources) or None, "queries": list(queries) or None}
    answer = answers.search(invocation, query, all_agents=True, **options)
    print_answer(answer, _lines(answer, " ".join((query, *queries)), form=form), as_json=as_json)
    if answer.get("error"):
        return 1
    return 0 if answer["results"] else NOTHING_FOUND


def _lines(answer: Answer, query: str, *, form: str | None) -> Iterator[str]:
    """Yield the lines of the results. Errors and lacks are remarks."""
    from memory.search.ranking.confidence import LIKELY, confidence

    results = answer["results"]
    if results and not any(confidence(hit["score"], hit.get("vectorScore")) >= LIKELY for hit in results):
        remark("nothing fits well; the nearest passages:")
    if form == "short":
        yield from map(_place, results)
    elif form == "long":
        yield from _passages(results)
    elif results:
        yield from _short_results(results, query)
    if answer.get("error"):
        remark(answer["error"] + (f"; {answer['action']}" if answer.get("action") else ""))
    elif not answer["results"]:
        remark("this memory is switched off" if answer.get("disabled") else "nothing found")
    for lack in dict.fromkeys(filter(None, (answer.get("fallbackReason"), *answer.get("degraded", ())))):
        remark(lack)
    behind = answer.get("pending", {}).get("documents", 0)
    if behind:
        remark(f"{behind} changed {'note is' if behind == 1 else 'notes are'} not indexed yet")


def _place(result: Mapping[str, Any]) -> str:
    return f"{printable_name(result['path'])}:{result['startLine']}-{result['endLine']}"


def _short_results(results: Sequence[Mapping[str, Any]], query: str) -> Iterator[str]:
    """Yield two lines for each result, which fit into the terminal: name and place, then the best sentence."""
    from memory.search.ranking.query import sought
    from memory.search.ranking.snippets import best_sentence, columns_of, shortened

    columns, terms = shutil.get_terminal_size((_PIPE_COLUMNS, 24)).columns, sought(query)
    for result in results:
        agent, title = (printable_name(result.get(name) or "") for name in ("agent", "title"))
        sentence = best_sentence(printable(result["snippet"]), terms=terms, columns=max(columns - 4, _LEAST_TITLE))
        if sentence.text.startswith(title.removesuffix("\N{HORIZONTAL ELLIPSIS}")):
            title = ""  # a note without a heading is called by its first words
        copies = f"  also in {result['alsoIn']['count']} more" if result.get("alsoIn") else ""
        place, score = _place(result), f"{result['score']:.2f}{copies}"
        room = columns - sum(columns_of(text) + 2 for text in (agent, place, score) if text)
        parts = (
            click.style(agent, fg="magenta") if agent else "",
            click.style(shortened(title, max(room, _LEAST_TITLE)), bold=True) if title else "",
            click.style(place, fg="cyan"),
            click.style(score, dim=True),
        )
        yield "  ".join(filter(None, parts))
        text = sentence.text
        for start, end in reversed(sentence.matches):
            text = text[:start] + click.style(text[start:end], bold=True) + text[end:]
        if text:
            yield f"    {text}"
        if result.get("resume"):
            yield click.style(f"    resume: {printable_name(result['resume'])}", dim=True)


def _passages(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield place and snippet of each result."""
    for number, result in enumerate(results):
        agent = click.style(f"{printable_name(result['agent'])}  ", fg="magenta") if result.get("agent") else ""
        score = click.style(f"  {result['score']:.2f}", dim=True)
        yield ("\n" if number else "") + agent + click.style(_place(result), fg="cyan", bold=True) + score
        for line in printable(result["snippet"]).rstrip().split("\n"):
            yield f"    {line}" if line else ""
        if also := result.get("alsoIn"):
            unnamed = ["..."] if also["count"] > len(also["paths"]) else []
            names = ", ".join([*map(printable_name, also["paths"]), *unnamed])
            yield click.style(f"    the same in {also['count']} more: {names}", dim=True)


@click.command("get", epilog=examples("recalld get MEMORY.md", "recalld get memory/2026-11-09.md:3-8"))
@click.argument("path")
@click.option("--from", "start_line", type=click.IntRange(min=1), metavar="LINE", help="First line, from 1.")
@click.option("--lines", type=click.IntRange(1, _MOST_LINES), metavar="N", help="How many lines.")
@click.option("--session-key", metavar="KEY", help="The session that asks, for scope rules.")
@read_workspace_option
@json_option
@pass_invocation
def get(
    invocation: Invocation, *, path: str, start_line: int | None, lines: int | None, as_json: bool, **options: Any
) -> int:
    """Print lines of a memory file, as search results name it: with its lines (MEMORY.md:3-5, MEMORY.md#L3-L5) or not.

    Only documents of the agent's memory are read: MEMORY.md, USER.md, memory/**/*.md and the extra paths. Without
    --agent, the file is read from the only agent that has it; if several have it, their names are printed.
    """

    # If no document is called so, one may be shown so, or meant with its lines.
    names = dict.fromkeys((path, typed_name(path)))
    ranges = [(name, start_line, lines) for name in names] + [_with_lines(name, start_line, lines) for name in names]
    answer: Answer = {}
    for name, first, count in filter(None, ranges):
        passage = answers.get(invocation, name, start_line=first, lines=count, all_agents=True, **options)
        is_missing = passage.get("error") and not passage.get("unavailable")
        answer = answer or passage if is_missing else passage
        if not is_missing:
            break
    print_answer(answer, _text(answer), as_json=as_json)
    if answer.get("unavailable"):
        return 1  # the memory could not be read
    return NOTHING_FOUND if answer.get("error") or answer.get("disabled") else 0


def _text(answer: Answer) -> Iterator[str]:
    """Yield the text of a passage. An error is a remark."""
    if answer.get("error") or answer.get("disabled"):
        remark(answer.get("error") or "this memory is switched off")
        return
    if answer["text"]:
        # A program that reads this wants it as it is.
        text = printable(answer["text"]) if sys.stdout.isatty() else answer["text"]
        yield text.removesuffix("\n")
    if answer.get("truncated") and answer.get("nextFrom"):
        remark(f"there is more: --from {answer['nextFrom']} (of {answer['totalLines']} lines)")


def _with_lines(name: str, start_line: int | None, lines: int | None) -> tuple[str, int | None, int | None] | None:
    """Return path, first line and number of lines of `PATH:3-5` or `PATH#L3-L5`; options are stronger."""
    match = _WITH_LINES.fullmatch(name)
    if match is None:
        return None
    name, first, last = match[1], max(1, int(match[2] or match[4])), int(match[3] or match[5] or 0)
    return name, start_line or first, lines or min(max(last, first) - first + 1, _MOST_LINES)
