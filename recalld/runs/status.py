"""Lines of a status answer for a terminal: one compact block an agent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from memory.status.condition_texts import counted, duration, since
from recalld.invocation import to_type
from recalld.terminal_text import printable_answer
from schemas.conditions import ConditionCode

if TYPE_CHECKING:
    from recalld.client import answers

#: Dead letters that are listed before the rest is only counted.
_LISTED = 5

#: Seconds that a look and its way here may take.
_JUST_FOUND_SECONDS = 3.0

#: Conditions that have lines of their own.
_LISTED_APART = {ConditionCode.DOCUMENTS_FAILED, ConditionCode.INDEX_INCONSISTENT}

#: Providers that run on this machine: what they did is in --json.
FREE_OF_CHARGE = frozenset({"local"})

#: Name of a line, and its text; without a text it is not shown.
Fact = tuple[str, str]


def status_lines(answer: Mapping[str, Any], *, resting: bool = False) -> Iterator[str]:
    """Yield the lines to print, styled; `click.echo` drops the styles outside of terminals.

    `resting`: nothing of this home runs, so that no broker has to answer.
    """
    status: answers.Status = printable_answer(answer)
    if (fleet := status.get("fleet")) is not None:
        for fact in _fleet(fleet):
            yield from map(to_type, _lines(fact))
        yield ""
    for agent in status["agents"]:
        about = agent["agent"] if len(status["agents"]) > 1 else None
        verdict = (
            click.style("ok", fg="green", bold=True) if agent["ok"] else click.style("not ok", fg="red", bold=True)
        )
        yield to_type(f"{click.style(agent['agent'], bold=True)}: {verdict}  {agent['workspace']}", agent=about)
        for fact in (*_agent(agent, resting=resting), *_findings(agent)):
            yield from (to_type(line, agent=about) for line in _lines(fact))
        yield ""
    for fact in _home(status, resting=resting):
        yield from _lines(fact)


def _lines(fact: Fact) -> Iterator[str]:
    if fact[1]:
        yield f"  {click.style(f'{fact[0]:<14}', dim=True)}{fact[1]}"


def _fleet(fleet: answers.FleetState) -> Iterator[Fact]:
    facts = [(name, fleet[name]) for name in ("agents", "documents", "chunks")]
    yield "fleet", ", ".join(counted(count, name.removesuffix("s")) for name, count in facts)
    waiting = counted(fleet["pending"], "document") + " waiting" if "pending" in fleet else "the broker does not answer"
    pending, refused = fleet["vectorsPending"], fleet["vectorsRefused"]
    yield "queue", _joined(waiting, f"{pending:,} vectors to come" if pending else "")
    letters = counted(fleet["deadLetters"], "dead letter") + " (`recalld dead list`)" if fleet["deadLetters"] else ""
    yield "failed", _joined(letters, f"{counted(refused, 'chunk')} refused" if refused else "")
    yield "budget spent", _yellow(", ".join(fleet["spentTenants"]))
    for trouble in fleet["troubles"]:
        yield "trouble", _yellow(f"{trouble['part']}: {trouble['message']}")
    troubled, more = len(fleet["troubled"]), fleet["moreTroubled"]
    yield "attention", _yellow(f"{counted(troubled, 'agent')} below" if troubled else "")
    yield "", _yellow(f"and {more:,} more, not shown" if more else "")


def _home(status: answers.Status, *, resting: bool) -> Iterator[Fact]:
    yield from _spent("spent by all", status.get("usage", []))
    cache = status["cache"]
    lookups = cache.get("hits", 0) + cache.get("misses", 0)
    rate = f"hit rate {cache['hits'] / lookups:.0%} ({counted(lookups, 'lookup')})" if lookups else ""
    entries = _joined(counted(cache["entries"], "embedding"), size(cache["diskBytes"])) if cache["enabled"] else "off"
    yield "cache", _joined(entries, rate)
    yield "broker", _broker(status["broker"], resting=resting)
    use: Mapping[str, Any] = status["diskUse"]
    names = [name for name in ("indexes", "cache", "models", "broker", "log", "free") if use.get(name) is not None]
    yield "disk", _joined(*(f"{name} {size(use[name])}" for name in names))
    for process in status.get("processes", ()):
        doing = "; ".join(process.get("doing", ()))
        yield "at work", f"{process['role']} (process {process['pid']}): {doing}" if doing else ""
    yield "hooks", f"{status['hooks']}PROGRAM" if status.get("hooks") else ""
    yield "home", status["home"]
    versions: Mapping[str, Any] = status["versions"]
    programs = {"recalld": "recalld", "python": "Python", "sqlite": "SQLite", "sqliteVec": "sqlite-vec"}
    yield "versions", _joined(*(f"{name} {versions[key]}" for key, name in programs.items() if versions.get(key)))


def _agent(agent: answers.AgentStatus, *, resting: bool) -> Iterator[Fact]:
    model = f"{agent['provider']} ({agent['model']})" if agent.get("model") else agent["provider"]
    requested = f"asked for {agent['requestedProvider']}" if agent["requestedProvider"] != agent["provider"] else ""
    reason = f": {agent['providerReason']}" if agent.get("providerReason") else ""
    if (address := agent["index"].get("sentTo")) is not None:
        yield "sends to", address
    else:
        yield "provider", _joined(model, requested) + reason
    yield "endpoint", _yellow(_endpoint(agent.get("endpoint")))
    yield "backend", _backend(agent.get("backend"))
    yield from _spent("spent", agent.get("usage", []))
    yield "files", _files(agent["disk"], agent["index"])
    if address is not None:
        yield "watching", agent.get("watch") or "nothing; `recalld watch --remote` sends changes while it runs"
        return
    sources = [
        f"{source['source']} {counted(source['files'], 'file')}, {counted(source['chunks'], 'chunk')}"
        for source in agent["index"].get("sourceCounts", ())
    ]
    yield "sources", "; ".join(sources)
    yield "index", _index(agent["index"])
    degraded = agent.get("degraded")
    yield "answers", _yellow(f"{agent['mode']}: {'; '.join(degraded)}" if degraded else "")
    yield "queue", _queue(agent["queue"], resting=resting)
    yield "vectors", _vectors(agent)
    for name, part in (("vector search", agent["vectorSearch"]), ("text search", agent["textSearch"])):
        state = "on" if part["available"] else "off"
        yield name, f"{state}: {part['reason']}" if part.get("reason") else "" if part["available"] else state
    watching: Mapping[str, Any] = agent.get("watching", {})
    last = {"last event": watching.get("lastEventAt"), "compared with the index": watching.get("lastComparedAt")}
    moments = [f"{event} {since(at)} ago" for event, at in last.items() if at]
    yield "watching", _joined(agent["watch"], *moments) if agent.get("watch") else ""


def _findings(agent: answers.AgentStatus) -> Iterator[Fact]:
    for trouble in agent.get("troubles", ()):
        if trouble.get("code") in _LISTED_APART:
            continue
        # A condition that this very look found is new.
        is_new = time.time() - trouble["since"] < _JUST_FOUND_SECONDS
        age = "" if is_new else f" (for {since(trouble['since'])})"
        yield "trouble", _yellow(f"{trouble['part']}: {trouble['message']}{age}")
    letters = agent.get("deadLetters", [])
    for letter in letters[:_LISTED]:
        yield "failed", click.style(f"{letter['path']}: {letter['reason']}", fg="red")
    if len(letters) > _LISTED:
        yield "failed", f"and {len(letters) - _LISTED} more (`recalld dead list`)"
    if letters and "sentTo" in agent["index"]:
        yield "", "mend and save it: it is sent again when it changes"
    elif letters:
        yield "", "mend and save it, or `recalld dead retry PATH`; `recalld dead drop PATH` forgets it"
    yield from (("advice", advice["message"]) for advice in agent.get("advice", ()))
    yield from (("note", note) for note in agent.get("notes", ()))
    findings, deep = agent.get("integrity"), agent.get("deep")
    if findings is not None:
        yield "integrity", click.style("; ".join(findings), fg="red") if findings else "sound"
    if deep is not None:
        rows, files = counted(deep["orphanRows"], "orphan row"), counted(deep["unusedFiles"], "unused index file")
        yield "", _joined(rows, files, f"{deep['damagedFiles']} damaged and set aside")
    if (probes := agent.get("probes")) is not None:
        yield "embedding", _probe(probes["embedding"], "a word was embedded", "no word was embedded")
        yield "", _probe(probes["vectors"], "vectors can be searched", "vectors cannot be searched")


def _probe(answer: answers.Availability, yes: str, no: str) -> str:
    return yes if answer["available"] else _yellow(f"{no}: {answer.get('reason', '')}")


def _broker(broker: answers.BrokerState, *, resting: bool) -> str:
    warning = broker.get("warning", "")
    if not broker["reachable"]:
        away = "the private one is started when it is needed" if resting else "does not answer"
        return click.style(warning, fg="red") if warning else away
    whose = "private" if broker["private"] else "yours"
    text = f"{broker['server']} ({whose}), kept on disk: {broker['persistence']}"
    return text + _yellow(f"; {warning}" if warning else "")


def _endpoint(endpoint: answers.EndpointStatus | None) -> str:
    if endpoint is None or endpoint["condition"] == "ok":
        return ""
    text = str(endpoint["condition"])
    text += f": {endpoint['reason']}" if endpoint.get("reason") else ""
    text += f" for {since(endpoint['since'])}" if endpoint.get("since") else ""
    left = max(1.0, endpoint["until"] - time.time()) if endpoint.get("until") else None
    return text + (f"; next try in {duration(left)}" if left is not None else "")


def _backend(backend: answers.BackendStatus | None) -> str:
    if backend is None:
        return ""
    instead = f" instead of {backend['fallbackFrom']}" if backend.get("fallbackFrom") else ""
    text = _joined(backend["backend"] + instead, counted(backend["files"], "file") if "files" in backend else "")
    return text + (_yellow(f": {backend['problem']}") if backend.get("problem") else "")


def _spent(name: str, usages: list[answers.UsageState]) -> Iterator[Fact]:
    for usage in usages:
        if usage["provider"] in FREE_OF_CHARGE:
            continue
        total, today = usage["total"], usage["today"]
        text = spent_text(usage["provider"], usage["model"], total["requests"], total["failed"], total["tokens"])
        paid = dollars(total["dollars"]) if total.get("dollars") else ""
        yield name, f"{_joined(text, paid)} (today {today['requests']}, {amount(today['tokens'])})"


def spent_text(provider: str, model: str, requests: int, failed: int, tokens: int) -> str:
    """Return the usage of a provider for people: requests, failures and tokens."""
    failures = f" ({failed:,} failed)" if failed else ""
    return f"{provider} {model}: {counted(requests, 'request')}{failures}, {amount(tokens)} tokens"


def _files(disk: Mapping[str, Any], index: answers.IndexState) -> str:
    words = {name: name for name in ("missing", "stale", "vanished", "growing", "settling", "kept")}
    words |= {"missing": "to send"} if index.get("sentTo") is not None else {}
    words |= {"leftOut": "left out", "excluded": "excluded", "excludedFolders": "folders excluded"}
    return _joined(
        "not looked at" if disk.get("files") is None else f"{disk['files']} on disk",
        f"{index['files'] - index.get('unread', 0)} {'indexed' if index.get('sentTo') is None else 'sent'}",
        *([f"{index['unread']} of no known format"] if index.get("unread") else []),
        *(f"{disk[name]} {label}" for name, label in words.items() if disk.get(name)),
        *(f"{counted(count, f'{kind} session')} not indexed" for kind, count in disk.get("otherSessions", {}).items()),
    )


def _index(index: answers.IndexState) -> str:
    state, build = "", index.get("build")
    if index.get("building"):
        state = "a new generation is being built"
    elif not index.get("identityMatches", True):
        state = "built with other settings; rebuild it with `recalld index`"
    if index.get("building") and build is not None:
        documents = f"{build['files']} of {counted(build['ofFiles'], 'document')}"
        vectors = f"{counted(build['vectorsPending'], 'vector')} to come" if build["vectorsPending"] else ""
        left = f"{duration(build['etaSeconds'])} left" if build.get("etaSeconds") else ""
        state += f" ({_joined(documents, vectors, left)})"
    changed = f"last change {since(index['lastCommitAt'])} ago" if index.get("lastCommitAt") else ""
    deleted = f"{counted(index['deletedOnDisk'], 'deleted chunk')} to overwrite" if index.get("deletedOnDisk") else ""
    deleted += f" (for {since(index['deletedSince'])})" if index.get("deletedSince") else ""
    return _joined(counted(index["chunks"], "chunk"), size(index["diskBytes"]), changed, deleted, state)


def _queue(queue: answers.QueueState, *, resting: bool) -> str:
    if not queue["reachable"]:
        return "nothing runs; `recalld up` starts everything" if resting else "the broker does not answer"
    if not queue["pending"]:
        return "empty"
    oldest = queue.get("oldestSeconds")
    waits = f"the oldest for {duration(oldest)}" if oldest is not None else ""
    return _joined(f"{counted(queue['pending'], 'document')} waiting", f"{queue['running']} running", waits)


def _vectors(agent: answers.AgentStatus) -> str:
    index, vectors = agent["index"], agent["vectors"]
    ready, pending, refused = index["vectorsReady"], index["vectorsPending"], index["vectorsRefused"]
    if not (ready or pending or refused) or (agent["provider"] == "none" and not ready):
        return ""  # keywords only: none is to come
    eta, in_jobs = vectors.get("etaSeconds"), vectors.get("inBatchJobs")
    text = _joined(
        f"{ready} of {ready + pending} ready",
        f"{refused} refused" if refused else "",
        f"{vectors['rate']:.1f} a second" if pending and vectors.get("rate") else "",
        f"{duration(max(1.0, eta))} left" if pending and eta is not None else "",
        f"{in_jobs} in batch jobs (`recalld jobs`)" if in_jobs else "",
        f"sentences of {vectors['sentencesReady']} chunks ready"
        if ready and vectors.get("sentencesWanted", 0) > vectors["sentencesReady"]
        else "",
    )
    return text + (f"; {vectors['advice']}" if vectors.get("advice") else "")


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _yellow(text: str) -> str:
    return click.style(text, fg="yellow") if text else ""


def dollars(number: float) -> str:
    """Return dollars for people: to the cent, and less than a cent as that."""
    return f"about ${number:,.2f}" if number >= 0.01 else "less than $0.01"


def amount(number: float) -> str:
    """Return a number for people: 5030000 is "5.0 M"."""
    return _short(number, "", " k", " M")


def size(number: float) -> str:
    """Return bytes for people, a kB being 1,000 of them: 1500 is "1.5 kB"."""
    return _short(number, " B", " kB", " MB", " GB")


def _short(number: float, *units: str) -> str:
    place = 0
    while place < len(units) - 1 and number >= (999.95 if place else 1000):
        number, place = number / 1000, place + 1
    return f"{number:.{int(place > 0)}f}{units[place]}"
