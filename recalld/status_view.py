"""A status answer as lines for a terminal: one compact block an agent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

#: Dead letters that are listed before the rest is only counted.
_LISTED = 5


def status_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """The lines to print, styled; `click.echo` drops the styles when nobody sees them."""
    for agent in answer["agents"]:
        yield from _agent(agent)
        yield ""
    cache = answer["cache"]
    kept = f"{_count(cache['entries'], 'embedding')}, {size(cache['diskBytes'])}" if cache["enabled"] else "off"
    yield _line("cache", kept)
    yield _line("home", f"{answer['home']} (recalld {answer['version']})")


def _agent(agent: Mapping[str, Any]) -> Iterator[str]:
    mark = click.style("ok", fg="green", bold=True) if agent["ok"] else click.style("not ok", fg="red", bold=True)
    yield f"{click.style(agent['agent'], bold=True)}: {mark}  {agent['workspace']}"
    yield _line("provider", _provider(agent))
    yield _line("files", _files(agent["disk"], agent["index"]))
    yield _line("index", _index(agent["index"]))
    yield _line("queue", _queue(agent["queue"]))
    progress = _progress(agent)
    if progress:
        yield _line("vectors", progress)
    for name, part in (("vector search", agent["vectorSearch"]), ("text search", agent["textSearch"])):
        if not part["available"] or part.get("reason"):
            state = "on" if part["available"] else "off"
            yield _line(name, state + (f": {part['reason']}" if part.get("reason") else ""))
    if agent.get("watch"):
        yield _line("watching", agent["watch"])
    for trouble in agent.get("troubles", ()):
        since = duration(max(0.0, time.time() - trouble["since"]))
        yield _line("trouble", click.style(f"{trouble['part']}: {trouble['message']} (for {since})", fg="yellow"))
    letters = agent.get("deadLetters", ())
    for letter in letters[:_LISTED]:
        yield _line("failed", click.style(f"{letter['path']}: {letter['reason']}", fg="red"))
    if len(letters) > _LISTED:
        yield _line("failed", f"and {len(letters) - _LISTED} more (--json lists all)")
    for note in agent.get("notes", ()):
        yield _line("note", note)
    findings = agent.get("integrity")
    if findings is not None:
        yield _line("integrity", "sound" if not findings else click.style("; ".join(findings), fg="red"))


def _provider(agent: Mapping[str, Any]) -> str:
    text = str(agent["provider"])
    if agent.get("model"):
        text += f" ({agent['model']})"
    if agent["requestedProvider"] != agent["provider"]:
        text += f", asked for {agent['requestedProvider']}"
    return text + (f": {agent['providerReason']}" if agent.get("providerReason") else "")


def _files(disk: Mapping[str, Any], index: Mapping[str, Any]) -> str:
    on_disk = "not looked at" if disk.get("files") is None else f"{disk['files']} on disk"
    parts = [f"{on_disk}, {index['files']} indexed"]
    parts += [f"{disk[name]} {name}" for name in ("missing", "stale", "vanished") if disk.get(name)]
    return ", ".join(parts)


def _index(index: Mapping[str, Any]) -> str:
    parts = [_count(index["chunks"], "chunk"), size(index["diskBytes"])]
    if index.get("lastCommitAt"):
        parts.append(f"last change {duration(max(0.0, time.time() - index['lastCommitAt']))} ago")
    if index.get("building"):
        parts.append("a new generation is being built")
    elif not index.get("identityMatches", True):
        parts.append("made with other settings; `recalld index` builds it anew")
    return ", ".join(parts)


def _queue(queue: Mapping[str, Any]) -> str:
    if not queue["reachable"]:
        return "the broker does not answer"
    if not queue["pending"]:
        return "empty"
    text = f"{_count(queue['pending'], 'document')} waiting, {queue['running']} running"
    oldest = queue.get("oldestSeconds")
    return text + (f", the oldest for {duration(oldest)}" if oldest is not None else "")


def _progress(agent: Mapping[str, Any]) -> str:
    index, vectors = agent["index"], agent["vectors"]
    total = index["vectorsReady"] + index["vectorsPending"]
    if not total and not index["vectorsRefused"]:
        return ""
    text = f"{index['vectorsReady']} of {total} ready"
    if index["vectorsRefused"]:
        text += f", {index['vectorsRefused']} refused"
    if index["vectorsPending"] and vectors.get("rate"):
        text += f", {vectors['rate']:.1f} a second"
    if index["vectorsPending"] and vectors.get("etaSeconds") is not None:
        text += f", {duration(vectors['etaSeconds'])} left"
    return text + (f"; {vectors['advice']}" if vectors.get("advice") else "")


def _line(name: str, text: str) -> str:
    return f"  {click.style(f'{name:<14}', dim=True)}{text}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size(amount: float) -> str:
    """Bytes for people: 1536 is "1.5 kB"."""
    for unit in ("B", "kB", "MB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GB"


def duration(seconds: float) -> str:
    """Seconds for people: 95 is "1 min 35 s"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
