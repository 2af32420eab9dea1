"""`recalld hook PROGRAM`: one hook from standard input into the home's spool, while the agent's program waits.

Imports little of the standard library and nothing else, because every import is paid for at every hook. The producers
read the spool and find the agent.
"""

from __future__ import annotations

import json
import os
import select
import time

from producers.hook_payloads import MAX_PAYLOAD_BYTES, PROGRAMS, HookUnreadable, read_hook
from producers.spool import write_hook
from recalld.settings.places import home_folder, named_config

TYPE_CHECKING = False  # `typing` is not imported
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds that the program which calls us gets to write its hook.
WAIT_SECONDS = 1.0

#: Seconds that a prompt waits for its memory.
ANSWER_SECONDS = 1.0

#: Programs that put what their hook answers before a prompt, and characters of a prompt that are looked at.
_PROMPTING = ("claude-code", "codex")
_PROMPT_CHARACTERS = 20_000

_PIECE = 1 << 16

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
    try:
        _take(program, last if last.lstrip().startswith("{") else None, options, environment)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the caller must not fail; it gets the reason
        reason = " ".join((str(error) or type(error).__name__).split())
        try:
            os.write(2, os.fsencode(f"recalld hook {program}: {reason}\n"))
        except OSError:
            pass  # standard error is closed
    return True


def _take(program: str, payload: str | None, options: Mapping[str, str], environment: Mapping[str, str]) -> None:
    for name in options:
        if not options[name]:
            raise HookUnreadable(f"{name} must not be empty")
    named = named_config(options.get("--config"), environment)
    if named is not None and not os.path.exists(named[1]):
        raise HookUnreadable(f"{named[0]}: there is no file {named[1]}")
    data = read_input() if payload is None else payload
    home = home_folder(options.get("--home"), environment)
    hook = read_hook(program, data)
    if hook is not None:
        write_hook(home, hook._replace(meant=options.get("--agent"), program=program))
    if program in _PROMPTING and _gives_context(home):
        answer = _context_for(data, home, options.get("--agent"))
        os.write(1, answer.encode("utf-8", "replace"))


def _gives_context(home: str) -> bool:
    """Return True if the query service that runs for this home gives prompts what memory knows about them."""
    try:
        with open(f"{home}/run/service.json", "rb") as file:
            return json.load(file).get("givesContext") is True
    except (OSError, ValueError, AttributeError):
        return False


def _context_for(payload: bytes | str, home: str, agent: str | None) -> str:
    """Return the answer to a hook whose program takes context for its model; empty without any.

    https://code.claude.com/docs/en/hooks and developers.openai.com/codex/hooks have its form.
    """
    hook = json.loads(payload)
    name = hook.get("hook_event_name")
    if name not in ("SessionStart", "UserPromptSubmit"):
        return ""
    from recalld.client import Client, ClientError

    client = Client.at_home(home, agent=agent, answer_timeout_seconds=ANSWER_SECONDS)
    if client is None:
        return ""
    prompt, session = hook.get("prompt"), hook.get("session_id")
    begins = name == "SessionStart" and hook.get("source") != "resume"
    try:
        text = client.before_prompt(
            prompt[:_PROMPT_CHARACTERS] if isinstance(prompt, str) else "",
            session=session if isinstance(session, str) else "",
            begins=begins,
        )["text"]
    except ClientError:
        return ""  # a prompt goes on without its memory
    if not text:
        return ""
    return json.dumps({"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}})


def read_input(descriptor: int = 0, *, wait_seconds: float = WAIT_SECONDS) -> bytes:
    """Read until the end, until a whole JSON text is there and nothing follows, or until the time is over.

    Raises:
        HookUnreadable: it is a terminal, or nothing came.
    """
    data = bytearray()
    deadline = time.monotonic() + wait_seconds
    try:
        if os.isatty(descriptor):
            raise HookUnreadable("a hook's JSON is read from standard input, which is a terminal here")
        while len(data) <= MAX_PAYLOAD_BYTES:
            if not _ready(descriptor, 0.0) and (_is_whole(data) or not _ready(descriptor, deadline - time.monotonic())):
                break
            piece = os.read(descriptor, _PIECE)
            if not piece:
                break
            data += piece
    except OSError as error:
        raise HookUnreadable(f"standard input cannot be read ({error.strerror})") from None
    if not data.strip():
        raise HookUnreadable("nothing came on standard input, where the hook's JSON is expected")
    return bytes(data)


def _ready(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], max(seconds, 0.0))[0])


def _is_whole(data: bytearray) -> bool:
    """Return True if the writer is done, though it keeps its end open."""
    if not data.rstrip().endswith(b"}"):
        return False
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
