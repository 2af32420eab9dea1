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
_MEND_FILES = "`recalld up` notices the change, `recalld index` compares when you run it"
_LOG = "see `recalld logs`"
_PROVIDER = "provider {subject}"
_IN_VAIN = "{billed:count text} ({tokens:,} tokens) billed for nothing so far"
_ASKED_BY_ONE = (
    "check model, remote.base_url and the gateway before it; keywords work meanwhile, and recalld tries one text again "
    "at {until:clock}"
)

#: Code -> words. `_Words` has the formats of the values.
TEXTS: Mapping[ConditionCode, Text] = {
    # Vectors
    _CODE.VECTORS_UNAVAILABLE: Text("{documents} by keyword only: {reason}", "{remedy}", "embedding"),
    _CODE.VECTORS_WAIT: Text("{chunks:waiting}: {reason}", "run the same command again", "vectors"),
    _CODE.VECTORS_STUCK: Text(
        "{chunks:waiting}, and none arrived for {minutes} min",
        "`recalld logs` says what holds them up; keywords find them meanwhile",
        "waiting vectors",
    ),
    _CODE.VECTORS_UNATTENDED: Text(
        "{chunks:waiting}, and no worker is running", "start `recalld up`, or run `recalld index`", "vectors"
    ),
    _CODE.VECTORS_HELD: Text(
        "{texts:count old text} ({tokens:,} tokens, {cost}) wait for your consent, and nothing is sent before",
        "`recalld index --agent {subject} --yes` embeds them; keywords find them meanwhile",
        "vectors",
    ),
    _CODE.BACKFILL_HALTED: Text(
        "a user {halt} the backfill; searches and saved notes go on",
        "`recalld backfill --agent {subject} --resume` goes on with it",
        "backfill",
    ),
    _CODE.SCRIPTS_UNREAD: Text(
        "{documents:count document} with text in {scripts}: the bundled model does not read it; keywords find it",
        "`recalld model pull multilingual-e5-large` fetches a model that reads it",
        "vectors",
    ),
    _CODE.VECTORS_UNWRITABLE: Text("{reason}: new chunks wait for their vectors", "", "vectors"),
    _CODE.BUDGET_SPENT: Text(
        "the {tokens:,} tokens of today (UTC) are used up",
        "vectors follow tomorrow, or once `cost.tokens_per_day` is raised (in a fleet, by `recalld tenant set {tenant} "
        "--tokens-a-day`); keywords work meanwhile",
        "vectors",
    ),
    _CODE.PROVIDER_MISSING: Text("{reason}", "correct `provider` in the settings; keywords work meanwhile", "vectors"),
    _CODE.PROVIDER_REFUSES: Text(
        "{error}", "`recalld doctor --online` tries it now; keywords work meanwhile", _PROVIDER
    ),
    _CODE.PROVIDER_FAILS: Text("{error}", "recalld tries again; `recalld doctor --online` tries it now", _PROVIDER),
    _CODE.PROVIDER_SILENT: Text(
        "{reason}",
        "recalld tries again, and keywords work meanwhile; `recalld doctor --online` tries it now",
        _PROVIDER,
    ),
    _CODE.PROVIDER_WAITS: Text(
        "it asks recalld to wait until {until:clock}",
        "this command then goes on by itself, and waits again when asked to; interrupted, it resumes when run again",
        _PROVIDER,
    ),
    _CODE.PROVIDER_UNREACHABLE: Text(
        "{error}",
        "check that it runs, remote.base_url and the network; keywords work meanwhile, vectors follow when it answers",
        _PROVIDER,
    ),
    _CODE.PROVIDER_USELESS: Text("{error}, " + _IN_VAIN, _ASKED_BY_ONE, _PROVIDER),
    _CODE.DIMENSIONS_CHANGED: Text(
        "it answers with {got:,} dimensions instead of {expected:,}, like a different model, " + _IN_VAIN,
        _ASKED_BY_ONE
        + "; or embed {texts} again with `recalld rebuild` ({cost}, about {minutes} min; --dry-run has exact figures)",
        _PROVIDER,
    ),
    _CODE.FALLBACK_UNUSABLE: Text("{reason}", "correct `fallback` in the settings", _PROVIDER),
    _CODE.GPU_MISSING: Text(
        'local.device is "cuda", and the installed {package} offers no GPU: the model runs on the processor',
        "install a build of {package} for CUDA, or unset local.device",
        "vectors",
    ),
    # Batch jobs
    _CODE.BATCH_API_MISSING: Text(
        "remote.batch.enabled is set, but recalld has no Batch API for {subject}: it embeds without batch jobs",
        "set it to false",
        "batch jobs",
    ),
    _CODE.BATCH_NEEDS_CACHE: Text(
        "remote.batch.enabled needs cache.enabled: recalld embeds without batch jobs",
        "switch the cache on, or batch jobs off",
        "batch jobs",
    ),
    _CODE.BATCH_SUSPENDED: Text(
        "{texts} wait: the last batch job at {provider} ended ({end}), {taken:,} of {sent:,} vectors came",
        "`recalld jobs resume` sends them in another batch job; keywords find them meanwhile",
        "batch jobs",
    ),
    _CODE.BATCH_JOB_UNREACHABLE: Text(
        "the batch job {subject} cannot be checked: {error}", "recalld tries again", "batch jobs"
    ),
    # The index
    _CODE.INDEX_UNREADABLE: Text("{error}", _LOG, "index"),
    _CODE.INDEX_SET_ASIDE: Text(
        "the index was damaged ({error}) and was set aside ({files})",
        "recalld is rebuilding it from the files and the cache; delete the old one when you have looked",
        "index file",
    ),
    _CODE.INDEX_OUTDATED: Text("the index was built with other settings", "rebuild it with `recalld index`", "index"),
    _CODE.INDEX_INCONSISTENT: Text(
        "the index is inconsistent ({findings})", "rebuild it with `recalld doctor --fix`", "index"
    ),
    _CODE.INDEXING_STILL: Text("no progress for {minutes} min, with {what} to go", "see `recalld status`", "queue"),
    _CODE.WORKERS_DIFFER: Text(
        "the workers of `recalld up` use {made_with}, this command would use {provider}",
        "restart `recalld up` with the same settings and keys",
        "workers",
    ),
    _CODE.WORKERS_OUT_OF_MEMORY: Text(
        "workers ran out of memory {ends} times within {minutes} min; the limit is {limit}",
        "raise the limit, or lower workers.threads",
        "workers",
    ),
    _CODE.DOCUMENTS_WAIT: Text(
        "{documents:count document} waiting, the oldest for {seconds:duration}",
        "start `recalld up`; if it is running, see `recalld logs`",
        "queue",
    ),
    _CODE.DOCUMENTS_UNQUEUED: Text(
        "the index is behind: {missing:count document} missing, {stale} outdated, {vanished} deleted, none queued",
        "run `recalld index`",
        "index",
    ),
    _CODE.DOCUMENTS_UNSENT: Text(
        "{documents:count change} not sent to the fleet yet",
        "`recalld watch --remote` sends them while it runs; start it if it does not",
        "fleet",
    ),
    _CODE.DOCUMENTS_FAILED: Text(
        "{documents:count document} failed",
        "`recalld dead list` says why; correct and save them, or run `recalld dead retry --all`",
        "dead letters",
    ),
    _CODE.BUILD_ABANDONED: Text(
        "a new index is half built, and nothing is building it",
        "start `recalld up`, or run `recalld index`",
        "build",
    ),
    _CODE.BUILD_STUCK: Text(
        "the new index has made no progress for {minutes} min, with {files} of {of_files} documents and {vectors} "
        "vectors to go",
        "continue with `recalld index`, or start over with `recalld rebuild --force`",
        "build",
    ),
    _CODE.KEYWORDS_UNAVAILABLE: Text("{error}", "", "keywords"),
    _CODE.NO_SPACE: Text("{error}", "", "disk space"),
    _CODE.STORE_FULL: Text("{error}", "", "store"),
    _CODE.JOB_FAILED: Text("{error}", "recalld tries again; " + _LOG, "{subject}"),
    _CODE.SETTINGS_OLDER: Text("{error}", "", "older settings"),
    _CODE.HOUSEKEEPING_FAILED: Text("{error}", "recalld tries again", "housekeeping"),
    _CODE.MAINTENANCE_FAILED: Text("{error}", "recalld tries again", "maintenance"),
    _CODE.OTHER_HOME: Text("workers of another home use this queue", "give each home a queue of its own", "home"),
    _CODE.MESSAGES_ALIKE: Text(
        "{percent} % of the newest {messages} messages begin with \u201c{beginning}\u201d, which looks like a program",
        "if so, please report that beginning and the program's version",
        "transcripts",
    ),
    # Another backend
    _CODE.BACKEND_FAILS: Text("{reason}", "correct that; recalld's own index answers meanwhile", "backend"),
    # Files and events
    _CODE.NO_DOCUMENTS: Text(
        "nothing to index yet in {subject}: no MEMORY.md, USER.md, memory/*.md or other note, and no transcript",
        "save a note there; while `recalld up` runs it is searchable a moment later",
        "files",
    ),
    _CODE.NOTES_NOT_TAKEN: Text(
        "nothing to index in {subject}: MEMORY.md, USER.md, memory/ and users/ hold no note, and "
        "{notes:count other .md file} below it not taken",
        'extra_paths = ["."] in the settings takes all of them',
        "files",
    ),
    _CODE.FILE_NAME_NOT_UTF8: Text("{subject} is left out: its name is not UTF-8", "rename it", "files"),
    _CODE.FILE_IS_LINK: Text(
        "{subject} is a symbolic link, which is not followed",
        "put the file or folder itself there, or add its target to extra_paths",
        "files",
    ),
    _CODE.FILE_NOT_REGULAR: Text(
        "{subject} is left out: it is a pipe, socket or device, not a file", "remove it", "files"
    ),
    _CODE.PATH_TOO_LONG: Text(
        "{subject} is left out: its path is longer than the system allows", "move it further up", "files"
    ),
    _CODE.TOO_MANY_DOCUMENTS: Text(
        "there are more than {most:,} documents up to {subject}: the rest is not indexed",
        "split them among several agents",
        "files",
    ),
    _CODE.FOLDER_UNLISTABLE: Text("{subject} cannot be listed: {error}", "check its permissions", "files"),
    _CODE.FOLDER_MISSING: Text("the folder {subject} does not exist", "create it", "files"),
    _CODE.FOLDER_EMPTIED: Text(
        "the folder {subject} is gone or empty, and the index still has {notes:count note} from it",
        "mount its disk or put it back within a day; `recalld index --forget-missing` forgets them now",
        "files",
    ),
    _CODE.EXTRA_PATH_INVALID: Text(
        "the extra path {subject} is neither a folder nor a Markdown file", "remove it from extra_paths", "files"
    ),
    _CODE.EXTRA_PATH_MISSING: Text(
        "the extra path {subject} does not exist", "create it, or remove it from extra_paths", "files"
    ),
    _CODE.SESSIONS_FOLDER_MISSING: Text(
        "the sessions folder {subject} does not exist",
        "create it, correct it, or remove it from the agent's sessions",
        "files",
    ),
    _CODE.SESSIONS_UNREADABLE: Text(
        "the sessions in a database cannot be read: {error}",
        "sessions that are indexed already are still found; " + _MEND_FILES,
        "files",
    ),
    _CODE.TRANSCRIPTS_NAMED_TWICE: Text(
        "{transcripts:count transcript} below {subject} left out ({example}): {first} has files of the same name",
        "rename them, or put the folder above both into the agent's sessions",
        "files",
    ),
    _CODE.IMPORTS_UNREADABLE: Text("{error}", "", "files"),
    _CODE.MORE_FILES: Text("and {count:,} more {kind:kind}", _MEND_FILES, "files"),
    _CODE.PROJECT_MARK_UNREADABLE: Text(
        "{marks:count project mark} in {subject} cannot be read, from line {line} on: prompts leave these lines out",
        "write <!-- project: github.com/owner/name -->",
        "files",
    ),
    _CODE.FILES_NOT_COMPARED: Text(
        "files and index could not be compared ({error})", "recalld tries again in {seconds:.0f} s", "reconcile"
    ),
    _CODE.EVENT_PATHS_REFUSED: Text(
        "{paths:count path} in events refused and not opened (the last one, {path}, is {reason})",
        "correct the sender, or add the folder to the agent's sessions",
        "events",
    ),
    _CODE.WATCH_MOVED: Text(
        "{subject} is another folder now", "nothing to do: recalld is comparing all files with the index", "watch"
    ),
    _CODE.WATCH_OVERFLOWED: Text(
        "the system's queue of file events overflowed",
        "nothing to do: recalld is comparing all files with the index",
        "watch",
    ),
    _CODE.WATCH_POLLS: Text(
        "changed files are found by polling: {reason}", "nothing to do: changes are found some seconds later", "watch"
    ),
    _CODE.WATCH_STATE_UNWRITABLE: Text("{subject} cannot be written: {error}", "free some space there", "watch-state"),
    _CODE.SPOOL_UNREADABLE: Text("the spool cannot be read: {error}", "check its permissions", "spool"),
    _CODE.SPOOL_FILES_SET_ASIDE: Text("{files}", "look at them in the folder beside it, each has its reason", "spool"),
    _CODE.HOOKS_UNWRITTEN: Text(
        "hooks are accepted at {url}, but that address cannot be written: {error}", "free some space there", "hooks"
    ),
    _CODE.HOOKS_ENDED: Text("hooks over HTTP have stopped: {error}", "restart `recalld up`", "hooks"),
    _CODE.SESSION_NOTES_WAIT: Text(
        "{notes:count note} of ended sessions cannot be written ({reason})",
        "free some space there, or make it writable; recalld tries again every minute",
        "session notes",
    ),
    _CODE.SESSION_ENDS_UNKEPT: Text(
        "ended sessions cannot be recorded for their notes ({error})",
        "free some space in the home; until then such hooks wait in the spool or are refused",
        "session notes",
    ),
    # Processes and the broker
    _CODE.CHANGES_KEPT: Text(
        "{documents:count changed document} waiting to be handed over: {error}",
        "that is tried again by itself",
        "queue",
    ),
    _CODE.DOOR_REFUSES: Text(
        "the fleet refuses this agent's documents: {error}",
        "correct fleet.token or the agent's name in fleet.agents, or have the fleet's operator admit it",
        "fleet",
    ),
    _CODE.SETTINGS_CHANGED: Text(
        "{subject} was changed at {changed_at:clock}, after {commands} read it at {read_at:clock}",
        "restart {commands}",
        "settings",
    ),
    _CODE.SETTINGS_INVALID: Text(
        "{subject} was changed at {changed_at:clock} and is no longer valid; {commands} read it at {read_at:clock}",
        "`recalld config show` names the mistake; correct it, then restart {commands}",
        "settings",
    ),
    _CODE.FOLDER_OPEN_TO_OTHERS: Text(
        "other users can write to {subject} and change the settings in it", "close it with `{command}`", "settings"
    ),
    _CODE.VERSION_DIFFERS: Text(
        "recalld {subject} is running ({commands}), this command is {version}", "restart {commands}", "version"
    ),
    _CODE.PROCESS_GONE: Text(
        "{process} exited unexpectedly, and {means}",
        "start it again the way you started it (`recalld up`, its service or its container)",
        "{subject}",
        "watch",
    ),
    _CODE.PROCESS_STOPPED: Text(
        "{process} is suspended, and {means}", "resume it with `kill -CONT {pid}`", "{subject}", "watch"
    ),
    _CODE.PROCESS_SILENT: Text(
        "{process} does not respond, and {means}", "look at {log}, then restart it", "{subject}", "watch"
    ),
    _CODE.PROCESS_STUCK: Text("{process} is stuck: {threads}", "restart it if that lasts", "{subject}", "watch"),
    _CODE.PROCESS_MISSING: Text("{reason}", "`recalld logs {subject}` says why", "{subject}"),
    _CODE.BROKER_READ_ONLY: Text("{reason}", "", "broker"),
    # One search
    _CODE.OTHER_MODEL: Text(
        "the index has vectors of another embedding model and is waiting to be rebuilt: keywords only",
        lacks="vectors",
    ),
    _CODE.QUERY_NOT_EMBEDDED: Text("{reason}: keywords only", lacks="vectors"),
    _CODE.KEYWORDS_ONLY: Text("{reason}: keywords only", lacks="vectors"),
    _CODE.VECTORS_ONLY: Text("{reason}: vectors only", lacks="keywords"),
    _CODE.SEARCH_LATE: Text("the search did not finish within {seconds:g} s", lacks="time"),
    _CODE.SEARCH_LATE_KEYWORDS: Text("the search did not finish within {seconds:g} s: keywords only", lacks="time"),
    _CODE.INDEX_MISSING: Text("there is no index yet: nothing was searched", lacks="index"),
    _CODE.QUEUE_UNREACHABLE: Text("the queue does not answer, so changes may be missing from the index", lacks="queue"),
    _CODE.CHANGES_UNSEEN: Text("{reason}; until then changed files are not indexed", lacks="watch"),
    _CODE.QUERY_CUT: Text("the query has {characters:,} characters: only the first {searched:,} were searched"),
    _CODE.NOT_RERANKED: Text("the reranker {reason}: results are not reranked", "check query.rerank", lacks="reranker"),
    _CODE.AGENT_NOT_SEARCHED: Text("this memory was not searched: {reason}", lacks="agent"),
}

#: Reason for which a batch job was asked to stop -> its words.
_STOPS: Mapping[str, str] = {
    StopReason.CANCELLED: "cancelled by the user",
    StopReason.OTHER_VECTORS: "the settings name another model",
    StopReason.SWITCHED_OFF: "remote.batch.enabled is off",
    StopReason.AGENT_GONE: "its agent is no longer configured",
    StopReason.TOO_LONG: "it took longer than remote.batch.timeout_minutes",
    StopReason.RESUMED: "its rest was resumed by the user",
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
    "up": "no other process is restarted",
    "watch": "changed files are not noticed",
    "work": "documents wait to be indexed",
    "serve": "searches are not answered",
    "broker": "indexing waits for it",
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
        values["log"] = f"its log on {host}" if host else "`recalld logs`"
        values["means"] = _MEANS.get(condition.subject, "its work waits")
    return _WORDS.vformat(template, (), values)
