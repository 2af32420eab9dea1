"""Lines of a status answer for a terminal: one compact block an agent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from memory.status.condition_texts import duration
from recalld.invocation import to_type
from recalld.terminal_text import printable_answer

if TYPE_CHECKING:
    from recalld.client import answers

#: Dead letters that are listed before the rest is only counted.
_LISTED = 5

#: A service's answer is a second old at most.
_JUST_FOUND_SECONDS = 3.0

#: Providers that run on this machine: what they did is in --json.
FREE_OF_CHARGE = frozenset({"local"})


def status_lines(answer: Mapping[str, Any], *, resting: bool = False) -> Iterator[str]:
    """Yield the lines to print, styled; `click.echo` drops the styles outside of terminals.

    `resting`: nothing of this home runs, so that no broker has to answer.
    """
    status: answers.Status = printable_answer(answer)
    for agent in status["agents"]:
        about = agent["agent"] if len(status["agents"]) > 1 else None
        yield from (to_type(line, agent=about) for line in _agent(agent, resting=resting))
        yield ""
    for usage in status.get("usage", ()):
        if usage["provider"] not in FREE_OF_CHARGE:
            yield _line("spent by all", _spent(usage))
    cache = status["cache"]
    kept = f"{_count(cache['entries'], 'embedding')}, {size(cache['diskBytes'])}" if cache["enabled"] else "off"
    lookups = cache.get("hits", 0) + cache.get("misses", 0)
    if lookups:
        kept += f", hit rate {cache['hits'] / lookups:.0%} ({_count(lookups, 'lookup')})"
    yield _line("cache", kept)
    # A service started before an upgrade leaves this out.
    if "broker" in status:
        yield _line("broker", _broker(status["broker"], resting=resting))
        if not status["broker"]["reachable"] and not resting:
            yield _line("processes", "not known: the broker does not answer")
    if "diskUse" in status:
        yield _line("disk", _disk(status["diskUse"]))
    for process in status.get("processes", ()):
        if process.get("doing"):
            yield _line("at work", f"{process['role']} (process {process['pid']}): {'; '.join(process['doing'])}")
    if status.get("hooks"):
        yield _line("hooks", f"{status['hooks']}PROGRAM")
    yield _line("home", status["home"])
    yield _line("versions", _versions(status.get("versions", {"recalld": status["version"]})))


def _agent(agent: answers.AgentStatus, *, resting: bool) -> Iterator[str]:
    mark = click.style("ok", fg="green", bold=True) if agent["ok"] else click.style("not ok", fg="red", bold=True)
    yield f"{click.style(agent['agent'], bold=True)}: {mark}  {agent['workspace']}"
    yield _line("provider", _provider(agent))
    endpoint = _endpoint(agent.get("endpoint"))
    if endpoint:
        yield _line("endpoint", click.style(endpoint, fg="yellow"))
    for usage in agent.get("usage", ()):
        if usage["provider"] not in FREE_OF_CHARGE:
            yield _line("spent", _spent(usage))
    yield _line("files", _files(agent["disk"], agent["index"]))
    if by_source := agent["index"].get("sourceCounts"):
        yield _line("sources", "; ".join(map(_source, by_source)))
    yield _line("index", _index(agent["index"]))
    if agent.get("degraded"):
        yield _line("answers", click.style(f"{agent['mode']}: {'; '.join(agent['degraded'])}", fg="yellow"))
    yield _line("queue", _queue(agent["queue"], resting=resting))
    progress = _progress(agent)
    if progress:
        yield _line("vectors", progress)
    for name, part in (("vector search", agent["vectorSearch"]), ("text search", agent["textSearch"])):
        if not part["available"] or part.get("reason"):
            state = "on" if part["available"] else "off"
            yield _line(name, state + (f": {part['reason']}" if part.get("reason") else ""))
    if agent.get("watch"):
        yield _line("watching", agent["watch"] + _last(agent.get("watching", {})))
    for trouble in agent.get("troubles", ()):
        seconds = time.time() - trouble["since"]
        # A condition that this very look found is new.
        since = f" (for {duration(seconds)})" if seconds >= _JUST_FOUND_SECONDS else ""
        yield _line("trouble", click.style(f"{trouble['part']}: {trouble['message']}{since}", fg="yellow"))
    letters = agent.get("deadLetters", ())
    for letter in letters[:_LISTED]:
        yield _line("failed", click.style(f"{letter['path']}: {letter['reason']}", fg="red"))
    if len(letters) > _LISTED:
        yield _line("failed", f"and {len(letters) - _LISTED} more (`recalld dead list`)")
    if letters:
        yield _line("", "mend and save it, or `recalld dead retry PATH`; `recalld dead drop PATH` forgets it")
    for advice in agent.get("advice", ()):
        yield _line("advice", advice["message"])
    for note in agent.get("notes", ()):
        yield _line("note", note)
    findings = agent.get("integrity")
    if findings is not None:
        yield _line("integrity", "sound" if not findings else click.style("; ".join(findings), fg="red"))
    deep = agent.get("deep")
    if deep is not None:
        text = f"{_count(deep['orphanRows'], 'orphan row')}, {_count(deep['unusedFiles'], 'unused index file')}"
        yield _line("", f"{text}, {deep['damagedFiles']} damaged and set aside")


def _last(watching: Mapping[str, Any]) -> str:
    text = ""
    for key, what in (("lastEventAt", "last event"), ("lastComparedAt", "compared with the index")):
        if watching.get(key):
            text += f", {what} {duration(max(0.0, time.time() - watching[key]))} ago"
    return text


def _broker(broker: answers.BrokerState, *, resting: bool) -> str:
    if not broker["reachable"]:
        if broker.get("warning"):
            return click.style(broker["warning"], fg="red")
        return "the private one is started when it is needed" if resting else "does not answer"
    text = f"{broker['server']} ({'private' if broker['private'] else 'yours'}), kept on disk: {broker['persistence']}"
    return text + (click.style(f"; {broker['warning']}", fg="yellow") if broker.get("warning") else "")


def _disk(use: Mapping[str, Any]) -> str:
    text = ", ".join(
        f"{name} {size(use[name])}" for name in ("indexes", "cache", "models", "broker", "log") if name in use
    )
    return text + (f"; {size(use['free'])} free" if use.get("free") is not None else "")


def _versions(versions: Mapping[str, Any]) -> str:
    names = {"recalld": "recalld", "python": "Python", "sqlite": "SQLite", "sqliteVec": "sqlite-vec"}
    return ", ".join(f"{name} {versions[key]}" for key, name in names.items() if versions.get(key))


def _provider(agent: answers.AgentStatus) -> str:
    text = str(agent["provider"])
    if agent.get("model"):
        text += f" ({agent['model']})"
    if agent["requestedProvider"] != agent["provider"]:
        text += f", asked for {agent['requestedProvider']}"
    return text + (f": {agent['providerReason']}" if agent.get("providerReason") else "")


def _endpoint(endpoint: answers.EndpointStatus | None) -> str:
    if endpoint is None or endpoint["condition"] == "ok":
        return ""
    text = str(endpoint["condition"])
    if endpoint.get("reason"):
        text += f": {endpoint['reason']}"
    if endpoint.get("since"):
        text += f" for {duration(max(0.0, time.time() - endpoint['since']))}"
    if endpoint.get("until"):
        text += f"; next try in {duration(max(1.0, endpoint['until'] - time.time()))}"
    return text


def _spent(usage: answers.UsageState) -> str:
    total, today = usage["total"], usage["today"]
    text = f"{usage['provider']} {usage['model']}: {_count(total['requests'], 'request')}"
    if total["failed"]:
        text += f" ({total['failed']} failed)"
    text += f", {amount(total['tokens'])} tokens"
    if total.get("dollars"):
        text += f", {dollars(total['dollars'])}"
    return f"{text} (today {today['requests']}, {amount(today['tokens'])})"


def _files(disk: answers.DiskState, index: answers.IndexState) -> str:
    on_disk = "not looked at" if disk.get("files") is None else f"{disk['files']} on disk"
    parts = [f"{on_disk}, {index['files']} indexed"]
    parts += [f"{disk[name]} {name}" for name in ("missing", "stale", "vanished", "growing", "kept") if disk.get(name)]
    parts += [f"{disk['leftOut']} left out"] if disk.get("leftOut") else []
    by_globs = ((disk.get("excluded"), "file"), (disk.get("excludedFolders"), "folder"))
    excluded = [_count(number, noun) for number, noun in by_globs if number]
    parts += [f"{' and '.join(excluded)} excluded"] if excluded else []
    parts += [
        f"{_count(count, f'{kind} session')} not indexed" for kind, count in disk.get("otherSessions", {}).items()
    ]
    return ", ".join(parts)


def _source(count: answers.SourceCount) -> str:
    return f"{count['source']} {_count(count['files'], 'file')}, {_count(count['chunks'], 'chunk')}"


def _index(index: answers.IndexState) -> str:
    parts = [_count(index["chunks"], "chunk"), size(index["diskBytes"])]
    if index.get("lastCommitAt"):
        parts.append(f"last change {duration(max(0.0, time.time() - index['lastCommitAt']))} ago")
    if index.get("building"):
        parts.append(f"a new generation is being built{_build(index.get('build'))}")
    elif not index.get("identityMatches", True):
        parts.append("made with other settings; `recalld index` builds it anew")
    return ", ".join(parts)


def _build(build: answers.BuildState | None) -> str:
    """Return the progress of a generation under construction, in brackets."""
    if build is None:
        return ""
    parts = [f"{build['files']} of {_count(build['ofFiles'], 'document')}"]
    if build["vectorsPending"]:
        parts.append(f"{_count(build['vectorsPending'], 'vector')} to come")
    if build.get("etaSeconds"):
        parts.append(f"{duration(build['etaSeconds'])} left")
    return f" ({', '.join(parts)})"


def _queue(queue: answers.QueueState, *, resting: bool) -> str:
    if not queue["reachable"]:
        return "nothing runs; `recalld up` starts everything" if resting else "the broker does not answer"
    if not queue["pending"]:
        return "empty"
    text = f"{_count(queue['pending'], 'document')} waiting, {queue['running']} running"
    oldest = queue.get("oldestSeconds")
    return text + (f", the oldest for {duration(oldest)}" if oldest is not None else "")


def _progress(agent: answers.AgentStatus) -> str:
    index, vectors = agent["index"], agent["vectors"]
    total = index["vectorsReady"] + index["vectorsPending"]
    if not total and not index["vectorsRefused"]:
        return ""
    if agent["provider"] == "none" and not index["vectorsReady"]:
        return ""  # keywords only: none is to come
    text = f"{index['vectorsReady']} of {total} ready"
    if index["vectorsRefused"]:
        text += f", {index['vectorsRefused']} refused"
    if index["vectorsPending"] and vectors.get("rate"):
        text += f", {vectors['rate']:.1f} a second"
    if index["vectorsPending"] and vectors.get("etaSeconds") is not None:
        text += f", {duration(max(1.0, vectors['etaSeconds']))} left"
    if vectors.get("inBatchJobs"):
        text += f", {vectors['inBatchJobs']} in batch jobs (`recalld jobs`)"
    return text + (f"; {vectors['advice']}" if vectors.get("advice") else "")


def _line(name: str, text: str) -> str:
    return f"  {click.style(f'{name:<14}', dim=True)}{text}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def amount(number: float) -> str:
    """Return a number for people: 5030000 is "5.0 M"."""
    if number < 1000:
        return f"{number:.0f}"
    if number < 999_950:
        return f"{number / 1000:.1f} k"
    return f"{number / 1_000_000:.1f} M"


def dollars(number: float) -> str:
    """Return dollars for people: to the cent, and less than a cent as that."""
    return f"about ${number:,.2f}" if number >= 0.01 else "less than $0.01"


def size(amount: float) -> str:
    """Return bytes for people, a kB being 1,000 of them: 1500 is "1.5 kB"."""
    if amount < 1000:
        return f"{amount:.0f} B"
    for unit in ("kB", "MB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} GB"
