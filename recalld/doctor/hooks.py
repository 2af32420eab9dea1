"""Check of the hooks in programs' settings: they call a recalld that exists."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from producers.hook_payloads import OPENCLAW_EVENTS
from recalld.discover.openclaw_settings import is_hook_enabled
from recalld.doctor.finding import Finding, Level
from recalld.hooks.installation import is_ours, spawned
from recalld.settings.program_folders import ProgramFolders


def hook_findings(folders: ProgramFolders) -> Iterator[Finding]:
    """Yield a finding on each program that has hooks of recalld."""
    for program, file in (
        ("claude-code", folders.claude_code / "settings.json"),
        ("codex", folders.codex / "hooks.json"),
    ):
        try:
            hooks = json.loads(file.read_text("utf-8-sig")).get("hooks", {})
            handlers = [handler for groups in hooks.values() for group in groups for handler in group.get("hooks", [])]
        except FileNotFoundError:
            continue
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            yield Finding("hooks", Level.WARNING, f"{file} cannot be read as settings of {program}", "mend it")
            continue
        commands = [handler["command"] for handler in handlers if is_ours(handler, program)]
        if not commands:
            continue
        broken = [command for command in commands if not _runs(command)]
        if broken:
            yield Finding(
                "hooks",
                Level.PROBLEM,
                f"{file} calls a recalld that is not there any more: {broken[0]}",
                f"`recalld hook install {program}` corrects it",
            )
        else:
            yield Finding.fine("hooks", f"{program} calls recalld at {len(commands)} events")
    for state in folders.openclaw:
        yield from _openclaw(state, folders.openclaw_config)


def _openclaw(state: Path, moved: Path | None) -> Iterator[Finding]:
    """Check the hook in one of OpenClaw's state folders, and that OpenClaw's settings enable it."""
    folder = state / "hooks" / "recalld"
    if not folder.is_dir():
        return
    again = "`recalld hook install openclaw` prints what belongs there; then restart OpenClaw's gateway"
    try:
        described, handler = ((folder / name).read_text("utf-8") for name in ("HOOK.md", "handler.ts"))
        called = spawned(handler)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "they are not the files that recalld prints"
        yield Finding("hooks", Level.PROBLEM, f"the hook in {folder} cannot work: {why}", again)
        return
    missing = [event for event in OPENCLAW_EVENTS if event not in described]
    if shutil.which(Path(called[0]).expanduser()) is None:
        message = f"{folder / 'handler.ts'} calls a recalld that is not there any more: {called[0]}"
        yield Finding("hooks", Level.PROBLEM, message, again)
    elif missing:
        yield Finding("hooks", Level.WARNING, f"{folder / 'HOOK.md'} does not ask for {', '.join(missing)}", again)
    elif not is_hook_enabled(state, moved, "recalld"):
        action = "`openclaw hooks enable recalld`, then restart OpenClaw's gateway"
        yield Finding("hooks", Level.WARNING, f"OpenClaw's settings do not enable the hook in {folder}", action)
    else:
        yield Finding.fine("hooks", f"openclaw calls recalld at {len(OPENCLAW_EVENTS)} events")


def _runs(command: str) -> bool:
    try:
        first = shlex.split(command)[0]
    except (ValueError, IndexError):
        return False
    return shutil.which(Path(first).expanduser()) is not None
