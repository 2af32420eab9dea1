"""Sentences for conditions: the event, and the remedy. Only this module turns a code into words."""

from __future__ import annotations

import string
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.conditions import Condition, ConditionCode, StopReason


@dataclass(frozen=True, slots=True)
class Text:
    """Words of one code: the event (`happened`) and the `remedy`, as templates of the condition's subject and params.

    `part` names the faulty part, in status. `lacks` is the metric's label of an answer with this condition.
    """

    happened: str
    remedy: str = ""
    part: str = "search"
    lacks: str = "other"


_CODE = ConditionCode
_MEND_FILES = "`recalld up` sees it by itself, `recalld index` compares when you run it"
_LOG = "the folder log in the home says more"
_PROVIDER = "provider {subject}"
_IN_VAIN = "{billed:count text} ({tokens:,} tokens) billed in vain so far"
_ASKED_BY_ONE = (
    "keywords work meanwhile, and one text asks at {until:clock} if it is right again; look at model, remote.base_url "
    "and the gateway before it"
)

#: Code -> words. `_Words` has the formats of the values.
TEXTS: Mapping[ConditionCode, Text] = {
    # Vectors
    _CODE.VECTORS_UNAVAILABLE: Text("{documents} by keyword only: {reason}", "{remedy}", "embedding"),
    _CODE.VECTORS_WAIT: Text("{chunks:waiting}: {reason}", "the same command asks again", "vectors"),
    _CODE.VECTORS_STUCK: Text(
        "{chunks:waiting}, and none came in for {minutes} min",
        "keywords find them meanwhile, and the folder log in the home says what holds it up",
        "waiting vectors",
    ),
    _CODE.VECTORS_UNATTENDED: Text(
        "{chunks:waiting}, and nothing runs that gets them", "`recalld up`, or `recalld index`, gets them", "vectors"
    ),
    _CODE.VECTORS_UNWRITABLE: Text("{reason}: new chunks wait for their vectors", "", "vectors"),
    _CODE.PROVIDER_MISSING: Text("{reason}", "correct `provider` in the settings; keywords work meanwhile", "vectors"),
    _CODE.PROVIDER_REFUSES: Text(
        "{error}", "keywords work meanwhile; `recalld doctor --online` asks it now", _PROVIDER
    ),
    _CODE.PROVIDER_FAILS: Text(
        "{error}", "it is asked again by itself; `recalld doctor --online` asks it now", _PROVIDER
    ),
    _CODE.PROVIDER_SILENT: Text(
        "{reason}",
        "keywords work meanwhile, and it is asked again by itself (`recalld doctor --online` asks it now)",
        _PROVIDER,
    ),
    _CODE.PROVIDER_USELESS: Text("{error}, " + _IN_VAIN, _ASKED_BY_ONE, _PROVIDER),
    _CODE.DIMENSIONS_CHANGED: Text(
        "it answers with {got:,} dimensions instead of {expected:,}, as another model does, " + _IN_VAIN,
        _ASKED_BY_ONE
        + "; `recalld rebuild` embeds {texts} again ({cost}, about {minutes} min; --dry-run says it exactly)",
        _PROVIDER,
    ),
    _CODE.FALLBACK_UNUSABLE: Text("{reason}", "correct `fallback` in the settings", _PROVIDER),
    # Batch jobs
    _CODE.BATCH_API_MISSING: Text(
        "remote.batch.enabled is set, but recalld speaks no Batch API of {subject}: embedding goes the normal way",
        "set it to false",
        "batch jobs",
    ),
    _CODE.BATCH_NEEDS_CACHE: Text(
        "remote.batch.enabled needs cache.enabled: embedding goes the normal way",
        "set one of them otherwise",
        "batch jobs",
    ),
    _CODE.BATCH_SUSPENDED: Text(
        "{reason}: embedding goes the normal way until {until:date}", "`recalld jobs` lists the jobs", "batch jobs"
    ),
    _CODE.BATCH_JOB_UNREACHABLE: Text(
        "the batch job {subject} cannot be followed: {error}", "it is asked again by itself", "batch jobs"
    ),
    # The index
    _CODE.INDEX_UNREADABLE: Text("{error}", _LOG, "index"),
    _CODE.INDEX_SET_ASIDE: Text(
        "the index was damaged ({error}) and was set aside ({files})",
        "it is being rebuilt from the files and the cache",
        "index file",
    ),
    _CODE.INDEX_OUTDATED: Text("the index was made with other settings", "`recalld index` builds it anew", "index"),
    _CODE.INDEX_INCONSISTENT: Text(
        "the index does not hold together ({findings})", "`recalld doctor --fix` builds it anew", "index"
    ),
    _CODE.INDEXING_STILL: Text(
        "nothing got on for {minutes} min, with {what} to come", "`recalld status` says what holds it up", "queue"
    ),
    _CODE.WORKERS_DIFFER: Text(
        "the workers of `recalld up` embed with another provider or model ({made_with}) than this command would "
        "({provider})",
        "start it again with the same settings and keys",
        "workers",
    ),
    _CODE.WORKERS_OUT_OF_MEMORY: Text(
        "workers ended {ends} times within {minutes} min for want of memory; the limit is {limit}",
        "raise it, or set workers.threads lower",
        "workers",
    ),
    _CODE.DOCUMENTS_WAIT: Text(
        "{documents:count document} waiting, the oldest for {seconds:duration}",
        "`recalld up` (or `recalld work`) works on them; when it runs, the folder log in the home says more",
        "queue",
    ),
    _CODE.DOCUMENTS_UNQUEUED: Text(
        "{missing:count document} missing in the index, {stale} stale, {vanished} vanished, and nothing is queued for "
        "them",
        "`recalld index` brings it up to date",
        "index",
    ),
    _CODE.DOCUMENTS_FAILED: Text(
        "{documents:count document} failed",
        "`recalld dead list` says why; mend and save them, or `recalld dead retry --all`",
        "dead letters",
    ),
    _CODE.BUILD_ABANDONED: Text(
        "a new index is half built, and nothing runs that goes on with it",
        "`recalld up` or `recalld index` does",
        "build",
    ),
    _CODE.BUILD_STUCK: Text(
        "the new index has got no further for {minutes} min, with {files} of {of_files} documents and {vectors} "
        "vectors to come",
        "`recalld index` goes on with it, `recalld rebuild --force` begins anew",
        "build",
    ),
    _CODE.KEYWORDS_UNAVAILABLE: Text("{error}", "", "keywords"),
    _CODE.NO_SPACE: Text("{error}", "", "disk space"),
    _CODE.STORE_FULL: Text("{error}", "", "store"),
    _CODE.JOB_FAILED: Text("{error}", "it is tried again by itself; " + _LOG, "{subject}"),
    _CODE.SETTINGS_OLDER: Text("{error}", "", "older settings"),
    _CODE.HOUSEKEEPING_FAILED: Text("{error}", "it is tried again by itself", "housekeeping"),
    _CODE.MAINTENANCE_FAILED: Text("{error}", "it is tried again by itself", "maintenance"),
    _CODE.OTHER_HOME: Text("workers of another home take from this queue", "give each home its own", "home"),
    _CODE.MESSAGES_ALIKE: Text(
        "{percent} % of the newest {messages} messages begin with \u201c{beginning}\u201d, as if a program wrote them",
        "if so, report that beginning and the program's version to recalld",
        "transcripts",
    ),
    # Another backend
    _CODE.BACKEND_FAILS: Text("{reason}", "mend that; searches are answered meanwhile", "backend"),
    # Files and events
    _CODE.FILE_NAME_NOT_UTF8: Text("{subject} is left out: its name is not UTF-8", "rename it", "files"),
    _CODE.FILE_IS_LINK: Text(
        "{subject} is a symbolic link, which is not followed",
        "put the file or folder itself there, or name its target in extra_paths",
        "files",
    ),
    _CODE.FILE_NOT_REGULAR: Text(
        "{subject} is left out: it is a pipe, a socket or a device and no regular file", "remove it", "files"
    ),
    _CODE.PATH_TOO_LONG: Text(
        "{subject} is left out: its path is longer than the system allows", "move it further up", "files"
    ),
    _CODE.TOO_MANY_DOCUMENTS: Text(
        "there are more than {most:,} documents in and before {subject}: the rest is not looked at",
        "give parts of them to agents of their own",
        "files",
    ),
    _CODE.FOLDER_UNLISTABLE: Text("{subject} cannot be listed: {error}", "check its permissions", "files"),
    _CODE.FOLDER_MISSING: Text("the folder {subject} is not there", "create it", "files"),
    _CODE.FOLDER_EMPTIED: Text(
        "the folder {subject} is gone or empty, while the index holds {notes:count note} of it",
        "mount its disk or put it back; they stay for a day, and `recalld index --forget-missing` forgets them now",
        "files",
    ),
    _CODE.EXTRA_PATH_INVALID: Text(
        "the extra path {subject} is neither a folder nor a Markdown file", "take it out of extra_paths", "files"
    ),
    _CODE.EXTRA_PATH_MISSING: Text(
        "the extra path {subject} is not there", "create it or take it out of extra_paths", "files"
    ),
    _CODE.SESSIONS_FOLDER_MISSING: Text(
        "the sessions folder {subject} is not there",
        "create it, correct it, or take it out of the agent's sessions",
        "files",
    ),
    _CODE.SESSIONS_UNREADABLE: Text(
        "the sessions of a database are not read: {error}",
        "what was indexed of them is found meanwhile; " + _MEND_FILES,
        "files",
    ),
    _CODE.TRANSCRIPTS_NAMED_TWICE: Text(
        "{transcripts:count transcript} below {subject} ({example}) named as below {first}: left out",
        "rename them, or name the folder above both in the agent's sessions",
        "files",
    ),
    _CODE.IMPORTS_UNREADABLE: Text("{error}", "", "files"),
    _CODE.MORE_FILES: Text("and {count:,} more {kind:kind}", _MEND_FILES, "files"),
    _CODE.PROJECT_MARK_UNREADABLE: Text(
        "{marks:count project mark} in {subject} cannot be read, from line {line} on: no prompt gets their lines",
        "write <!-- project: github.com/owner/name -->",
        "files",
    ),
    _CODE.FILES_NOT_COMPARED: Text(
        "files and index could not be compared ({error})", "tried again in {seconds:.0f} s", "reconcile"
    ),
    _CODE.EVENT_PATHS_REFUSED: Text(
        "{paths:count path} in events refused and not opened (the last one, {path}, is {reason})",
        "correct what sends it, or add its folder to the agent's sessions",
        "events",
    ),
    _CODE.WATCH_MOVED: Text("{subject} is another folder now", "all files are being compared with the index", "watch"),
    _CODE.WATCH_OVERFLOWED: Text(
        "the system's queue of file events overflowed", "all files are being compared with the index", "watch"
    ),
    _CODE.WATCH_POLLS: Text("file changes are noticed by polling: {reason}", "", "watch"),
    _CODE.WATCH_STATE_UNWRITABLE: Text("{subject} cannot be written: {error}", "free space there", "watch-state"),
    _CODE.SPOOL_UNREADABLE: Text("the spool cannot be read: {error}", "check its permissions", "spool"),
    _CODE.SPOOL_FILES_SET_ASIDE: Text("{files}", "the folder beside it holds them, each with its reason", "spool"),
    _CODE.HOOKS_UNWRITTEN: Text(
        "hooks are taken at {url}, which could not be written down: {error}", "free space there", "hooks"
    ),
    _CODE.HOOKS_ENDED: Text("hooks are no longer taken by HTTP: {error}", "start `recalld up` again", "hooks"),
    _CODE.SESSION_NOTES_WAIT: Text(
        "{notes:count note} of ended sessions cannot be written ({reason})",
        "make room there, or make it writable; it is tried again every minute",
        "session notes",
    ),
    _CODE.SESSION_ENDS_UNKEPT: Text(
        "the home cannot keep the ends of sessions until their notes are written ({error})",
        "make room there; until then such hooks wait in the spool or are refused",
        "session notes",
    ),
    # Processes and the broker
    _CODE.CHANGES_KEPT: Text(
        "the queue does not take changes ({error}); changed documents are kept ({documents} now)",
        "they are handed over when it does",
        "queue",
    ),
    _CODE.SETTINGS_CHANGED: Text(
        "{subject} was changed at {changed_at:clock}, after {commands} read it at {read_at:clock}",
        "start {commands} again",
        "settings",
    ),
    _CODE.SETTINGS_INVALID: Text(
        "{subject} was changed, to what is not valid, at {changed_at:clock}, after {commands} read it at "
        "{read_at:clock}",
        "`recalld config show` says what to mend; then start {commands} again",
        "settings",
    ),
    _CODE.FOLDER_OPEN_TO_OTHERS: Text(
        "other users may write {subject}, and so change the settings in it", "`{command}` closes it", "settings"
    ),
    _CODE.VERSION_DIFFERS: Text(
        "recalld {subject} runs ({commands}), and this is {version}", "start {commands} again", "version"
    ),
    _CODE.PROCESS_GONE: Text(
        "{process} ended without a word, and {means}",
        "start it again the way it was started (`recalld up`, its service or its container)",
        "{subject}",
        "watch",
    ),
    _CODE.PROCESS_STOPPED: Text(
        "{process} is stopped, and {means}", "`kill -CONT {pid}` lets it go on", "{subject}", "watch"
    ),
    _CODE.PROCESS_SILENT: Text(
        "{process} gives no sign of life, and {means}", "look into {log}, and start it again", "{subject}", "watch"
    ),
    _CODE.PROCESS_STUCK: Text(
        "{process} does not get on: {threads}", "if it stays so, start it again", "{subject}", "watch"
    ),
    _CODE.PROCESS_MISSING: Text("{reason}", "its log says why", "{subject}"),
    _CODE.BROKER_READ_ONLY: Text("{reason}", "", "broker"),
    # One search
    _CODE.OTHER_MODEL: Text(
        "the index holds vectors of another embedding model and is waiting to be rebuilt: keywords only",
        lacks="vectors",
    ),
    _CODE.QUERY_NOT_EMBEDDED: Text("{reason}: keywords only", lacks="vectors"),
    _CODE.KEYWORDS_ONLY: Text("{reason}: keywords only", lacks="vectors"),
    _CODE.VECTORS_ONLY: Text("{reason}: vectors only", lacks="keywords"),
    _CODE.SEARCH_LATE: Text("the search did not finish within {seconds:g} s", lacks="time"),
    _CODE.SEARCH_LATE_KEYWORDS: Text("the search did not finish within {seconds:g} s: keywords only", lacks="time"),
    _CODE.INDEX_MISSING: Text("there is no index yet: nothing was searched", lacks="index"),
    _CODE.QUEUE_UNREACHABLE: Text("the queue does not answer: how far the index is behind is not known", lacks="queue"),
    _CODE.CHANGES_UNSEEN: Text("{reason}; until then changed files are not noticed", lacks="watch"),
    _CODE.QUERY_CUT: Text("the query has {characters:,} characters: its first {searched:,} were searched"),
}

#: Reason for which a batch job was asked to stop -> its words.
_STOPS: Mapping[str, str] = {
    StopReason.CANCELLED: "cancelled by a person",
    StopReason.OTHER_VECTORS: "the settings ask for other vectors",
    StopReason.SWITCHED_OFF: "remote.batch.enabled is off",
    StopReason.AGENT_GONE: "its agent is not configured any more",
    StopReason.TOO_LONG: "it took longer than remote.batch.timeout_minutes",
}

#: Code of a file's condition -> its plural, where many are only counted.
_KINDS: Mapping[str, str] = {
    _CODE.FILE_NAME_NOT_UTF8: "files or folders whose names are not UTF-8",
    _CODE.FILE_IS_LINK: "symbolic links, which are not followed",
    _CODE.FILE_NOT_REGULAR: "pipes, sockets and devices",
    _CODE.PATH_TOO_LONG: "files or folders whose paths are too long",
    _CODE.FOLDER_UNLISTABLE: "folders that cannot be listed",
}

#: Role of a process -> what its absence means.
_MEANS: Mapping[str, str] = {
    "up": "what dies is not started again",
    "watch": "changed files are not noticed",
    "work": "what it had taken waits, and so may the rest",
    "serve": "searches are not answered",
    "broker": "everything waits for it",
}


def text_of(condition: Condition) -> str:
    """Return the condition's sentence in English: the event; the remedy.

    Raises:
        KeyError: a param that the sentence shows is missing, which is an error of the code that raised it.
    """
    return "; ".join(filter(None, [what_happened(condition), remedy_of(condition)]))


def what_happened(condition: Condition) -> str:
    """Return the event, which is the first half of the sentence."""
    return _filled(TEXTS[condition.code].happened, condition)


def remedy_of(condition: Condition) -> str:
    """Return the remedy; "" when the event implies it."""
    return _filled(TEXTS[condition.code].remedy, condition)


def part_of(condition: Condition) -> str:
    """Return the name of the faulty part: "watch", "provider openai"."""
    return _filled(TEXTS[condition.code].part, condition)


def stop_text(reason: str) -> str:
    """Return a `StopReason` in words, "" without one."""
    return _STOPS.get(reason, "")


def counted(number: int, noun: str) -> str:
    """Return "1 document", "2,000 documents"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def waiting_chunks(number: int) -> str:
    """Return "1 chunk waits for its vector", "2,000 chunks wait for their vectors"."""
    return f"{counted(number, 'chunk')} {'waits for its vector' if number == 1 else 'wait for their vectors'}"


def duration(seconds: float) -> str:
    """Return seconds for people: 95 is "1 min 35 s"."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s" if rounded % 60 else f"{rounded // 60} min"
    if rounded < 86_400:
        return f"{rounded // 3600} h {rounded % 3600 // 60} min"
    return f"{rounded // 86_400} d {rounded % 86_400 // 3600} h"


def since(at: float) -> str:
    """Return the time since a moment, in Unix seconds, for people."""
    return duration(max(0.0, time.time() - at))


class _Words(string.Formatter):
    """Templates whose values may be `waiting` chunks, a `count` of a noun, a `clock`, a `date` or a `duration`."""

    def format_field(self, value: Any, format_spec: str) -> str:
        match format_spec.split(" ", 1):
            case ["waiting"]:
                return waiting_chunks(value)
            case ["count", noun]:
                return counted(value, noun)
            case ["duration"]:
                return duration(value)
            case ["clock"]:
                today = time.strftime("%Y-%m-%d", time.localtime(value)) == time.strftime("%Y-%m-%d")
                return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", time.localtime(value))
            case ["date"]:
                return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
            case ["kind"]:
                return _KINDS[value]
            case _:
                return str(super().format_field(value, format_spec))


_WORDS = _Words()


def _filled(template: str, condition: Condition) -> str:
    values: dict[str, Any] = {"subject": condition.subject, **condition.params}
    if "pid" in values:
        host = values.get("host")
        values["process"] = f"process {values['pid']} on {host}" if host else f"process {values['pid']}"
        values["log"] = f"its log on {host}" if host else "the folder log in the home"
        values["means"] = _MEANS.get(condition.subject, "its work waits")
    return _WORDS.vformat(template, (), values)
