"""The hook that OpenClaw runs: a folder with two files, which a person puts where OpenClaw looks."""

from __future__ import annotations

import json
import re
import shlex

from producers.hook_payloads import OPENCLAW_EVENTS


def openclaw_hook(command: str) -> dict[str, str]:
    """File name -> content. The handler passes on which session it was, and nothing that was said."""
    program, *arguments = shlex.split(command)
    metadata = {"openclaw": {"events": list(OPENCLAW_EVENTS)}}
    return {
        "HOOK.md": (
            "---\n"
            "name: recalld\n"
            'description: "Tell recalld that a session grew, was compacted or ended"\n'
            f"metadata: {json.dumps(metadata)}\n"
            "---\n"
        ),
        "handler.ts": _HANDLER.format(program=json.dumps(program), arguments=json.dumps(arguments)),
    }


def spawned(handler: str) -> list[str]:
    """Return the command that a handler of ours calls. Raises ValueError for another program's handler."""
    found = re.search(r'spawn\(("(?:[^"\\]|\\.)*"), (\[.*?\]), ', handler)
    if found is None:
        raise ValueError("this handler calls nothing")
    return [str(json.loads(found[1])), *map(str, json.loads(found[2]))]


_HANDLER = """\
import {{ spawn }} from "node:child_process";

const session = (entry) => entry && {{ sessionId: entry.sessionId, sessionFile: entry.sessionFile }};

export default async function handler(event) {{
  const context = event.context ?? {{}};
  const child = spawn({program}, {arguments}, {{ stdio: ["pipe", "ignore", "ignore"] }});
  child.on("error", () => {{}});
  child.stdin.on("error", () => {{}});
  child.stdin.end(
    JSON.stringify({{
      type: event.type,
      action: event.action,
      sessionKey: event.sessionKey,
      context: {{
        ...session(context),
        sessionEntry: session(context.sessionEntry),
        previousSessionEntry: session(context.previousSessionEntry),
      }},
    }}),
  );
  child.unref();
}}
"""
