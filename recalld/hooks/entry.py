"""`recalld hook PROGRAM`: one hook from standard input into the home's spool, while the agent's program waits.

Imports little of the standard library and nothing else, because every import is paid for at every hook. The producers
read the spool and find the agent.
"""

from __future__ import annotations

import json
import os
import select
import stat
import time

from producers.hook_events import MAX_PAYLOAD_BYTES, PROGRAMS, HookUnreadable, read_hook, read_payload
from producers.spool import write_hook
from recalld.settings.places import home_folder

TYPE_CHECKING = False  # `typing` is not imported
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: Seconds that the program which calls us gets to write its hook, and that a prompt waits for its memory.
WAIT_SECONDS = ANSWER_SECONDS = 1.0

#: Characters of a prompt that are looked at.
_PROMPT_CHARACTERS = 20_000

_OPTIONS = ("--home", "--config", "--agent")


def take_if_hook(arguments: list[str], environment: Mapping[str, str]) -> bool:
    """Take a hook if the command line is `recalld hook PROGRAM`; return False for every other command.

    The global options may stand anywhere. A JSON text at the end is the hook: Codex's `notify` puts it there. An error
    is one sentence on standard error.
    """
    options: dict[str, str] = {}
    words: list[str] = []
    rest = iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in _OPTIONS:
            options[name] = value if equals else next(rest, "")
        else:
            words.append(word)
    if words[:1] != ["hook"] or len(words) < 2 or words[1] not in PROGRAMS or {"-h", "--help"} & {*words}:
        return False
    program, last = words[1], words[-1]
    home, agent = home_folder(options.get("--home"), environment), options.get("--agent")
    try:
        payload = read_payload(last if last.lstrip().startswith("{") else read_input())
        hook = read_hook(program, payload)
        if hook is not None:
            write_hook(home, hook._replace(meant=agent, program=program, at=time.time()))
        if program != "openclaw" and _gives_context(home):
            os.write(1, _context_for(payload, home, agent).encode())
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the caller must not fail; it gets the reason
        reason = " ".join((str(error) or type(error).__name__).split())
        try:
            os.write(2, os.fsencode(f"recalld hook {program}: {reason}\n"))
        except OSError:
            pass  # standard error is closed
    return True


def read_input(descriptor: int = 0, *, wait_seconds: float = WAIT_SECONDS) -> bytes:
    """Read until the end, or until the time is over.

    Raises:
        HookUnreadable: nothing came.
    """
    data = b""
    deadline = time.monotonic() + wait_seconds
    while len(data) <= MAX_PAYLOAD_BYTES:
        if not select.select([descriptor], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            break
        piece = os.read(descriptor, 1 << 20)
        if not piece:
            break
        data += piece
    if not data.strip():
        raise HookUnreadable("nothing came on standard input, where the hook's JSON is expected")
    return data


# Context for prompts


def _gives_context(home: str) -> bool:
    """Return True if the query service that runs for this home adds memory to prompts."""
    try:
        return json.loads(file_beginning(f"{home}/run/service.json")).get("givesContext") is True
    except (OSError, ValueError, AttributeError):
        return False


def _context_for(payload: Mapping[str, Any], home: str, agent: str | None) -> str:
    """Return the answer to a hook whose program takes context for its model; empty without any.

    https://code.claude.com/docs/en/hooks and developers.openai.com/codex/hooks have its form.
    """
    name, prompt, session, folder = (
        value if isinstance(value := payload.get(key), str) else ""
        for key in ("hook_event_name", "prompt", "session_id", "cwd")
    )
    if name not in ("SessionStart", "UserPromptSubmit"):
        return ""
    from recalld.client import Client, ClientError

    client = Client.at_home(home, agent=agent, answer_timeout_seconds=ANSWER_SECONDS)
    if client is None:
        return ""
    begins = name == "SessionStart" and payload.get("source") != "resume"
    project = project_of(folder)
    projects = [project] if project else []
    try:
        answer = client.before_prompt(prompt[:_PROMPT_CHARACTERS], session=session, begins=begins, projects=projects)
    except ClientError:
        return ""  # a prompt goes on without its memory
    text = answer["text"]
    return json.dumps({"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}}) if text else ""


def project_of(folder: str) -> str | None:
    """Return the repository around a folder as host/owner/name, by its remote `origin`; None without one.

    Only the settings of git are read, here and not in the service, which opens no path that a request names. A remote
    that is a folder is no project.
    """
    if not os.path.isabs(folder):
        return None
    try:
        while not os.path.exists(git := os.path.join(folder, ".git")):
            if folder == (folder := os.path.dirname(folder)):
                return None
        if os.path.isfile(git):
            # A worktree names its folder below the repository's, and this one the repository's.
            git = os.path.join(folder, file_beginning(git).removeprefix("gitdir:").strip())
            if os.path.exists(common := os.path.join(git, "commondir")):
                git = os.path.join(git, file_beginning(common).strip())
        settings = file_beginning(os.path.join(git, "config")).partition('[remote "origin"]')[2].partition("[")[0]
    except (OSError, ValueError):
        return None
    values = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in settings.splitlines())}
    scheme, separator, rest = values.get("url", "").partition("://")
    # Without a scheme a colon ends the host, unless a slash comes first (git-clone(1)).
    host, _, name = (rest if separator else scheme).partition("/" if separator else ":")
    if scheme == "file" or "/" in host or name.startswith(":"):
        return None
    # A user, a key and a port in the address are left out.
    host, name = host.rpartition("@")[2].partition(":")[0], name.strip("/").removesuffix(".git")
    return f"{host}/{name}" if host and name else None


def file_beginning(file: str) -> str:
    """Return the beginning of a regular file. Anything else, which may never end, is not waited for."""
    with open(file, encoding="utf-8", errors="replace", opener=_without_waiting) as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise ValueError(f"{file} is no file")
        return opened.read(1 << 16)


def _without_waiting(file: str, flags: int) -> int:
    return os.open(file, flags | os.O_NONBLOCK)
