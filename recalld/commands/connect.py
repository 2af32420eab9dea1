"""`recalld connect`: programs that search this memory, with their own notes and transcripts in it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from recalld.client.address import running_service
from recalld.connect import Piece, Plan, plan_removal, recorded_pieces
from recalld.connect.connections import RULES_FILES, plan_agents, plan_hooks, plan_rules, plan_server
from recalld.connect.programs import PROGRAMS, is_installed, registered_entry, served_tools, words_for_program, words_of
from recalld.discover import machine
from recalld.discover.memories import DiscoveredMemory, with_unique_names
from recalld.hooks.installation import waiting_events
from recalld.invocation import Invocation, examples, json_option, pass_invocation, to_type
from recalld.settings.load import config_to_write, program_folders
from recalld.settings.workspaces import remembered_workspaces
from recalld.terminal_text import print_answer, printable_name
from schemas.errors import UserError
from schemas.settings import AgentSettings

#: Places of rules that `--rules` names.
_SCOPES = click.Choice(["user", "project", "none"])


@click.command(
    "connect",
    epilog=examples("recalld connect", "recalld connect claude-code codex", "recalld connect --remove cursor"),
)
@click.option("--all-agents", is_flag=True, help="Give the programs the memory of all agents, wherever they run.")
@click.option("--no-hooks", is_flag=True, help="Install no hooks in Claude Code and Codex.")
@click.option("--rules", "scope", type=_SCOPES, help="Add rules about memory to your own or the project's file. [asks]")
@click.option("--remove", "removing", is_flag=True, help="Take out what connect put in; without PROGRAM everywhere.")
@click.option("--yes", is_flag=True, help="Write without asking.")
@json_option
@click.argument("programs", nargs=-1, metavar="[PROGRAM]...", type=click.Choice(list(PROGRAMS)))
@pass_invocation
def connect(
    invocation: Invocation,
    *,
    all_agents: bool,
    no_hooks: bool,
    scope: str | None,
    removing: bool,
    yes: bool,
    as_json: bool,
    programs: tuple[str, ...],
) -> int:
    """Connect programs to this memory; without PROGRAM, list which are installed and connected.

    PROGRAM is claude-code, codex, openclaw, cursor, gemini, vscode, windsurf or opencode. `recalld mcp` becomes its MCP
    server, once for all projects, and its notes and transcripts become agents in the settings, behind those that are
    there. Claude Code and Codex get hooks. Every change is shown first, and the connection is tested at the end. The
    same command later adds what is new. A file whose comments would be lost is left alone, and the lines to paste are
    shown. --remove leaves the agents in the settings.

    Rules tell Claude Code (CLAUDE.md) and Codex (AGENTS.md) when to search memory, and when and where to write to it.
    Without --rules a question on the terminal decides, which --yes does not answer. Later calls renew them.
    """
    words = dict.fromkeys(programs, words_for_program(invocation, "mcp", *(["--all-agents"] if all_agents else [])))
    names = list(words)
    plan = Plan()
    if removing:
        plan = plan_removal(invocation.home_path, names or PROGRAMS)
    elif names:
        plan = _plan(invocation, words, with_hooks=not no_hooks)
        _plan_rules(invocation, names, scope, plan)
    _carry_out(invocation, plan, agreed=yes)
    listing = list(_listing(invocation))
    connected = [row["name"] for row in listing if row["name"] in names and row["command"] == words[row["name"]]]
    steps = _listing_lines(listing)
    if names and not removing:
        tools = served_tools(words[connected[0]]) if connected else []
        steps = _next_steps(invocation, connected, tools, plan)
    print_answer({"programs": listing}, steps if names or not removing else (), as_json=as_json)
    return 0 if removing or len(connected) == len(names) else 1


def _carry_out(invocation: Invocation, plan: Plan, *, agreed: bool) -> None:
    """Show the plan, ask, and make its changes. Standard output is for the answer."""
    for line in (*(change.line for change in plan.changes), *plan.remarks):
        click.echo("\n".join(map(printable_name, line.split("\n"))), err=True)
    if plan.changes and not agreed and not sys.stdin.isatty():
        raise UserError("nothing was changed: say --yes to write what is shown", exit_code=2)
    if plan.changes and not agreed and not click.confirm("Make these changes?", default=False, err=True):
        raise UserError("nothing was changed")
    for sentence in plan.carry_out(invocation.home_path):
        click.echo(printable_name(sentence), err=True)


def _plan(invocation: Invocation, words: dict[str, list[str]], *, with_hooks: bool) -> Plan:
    """Plan to connect each program with its command, to which the agent of OpenClaw is added."""
    plan, folders, recorded = Plan(), program_folders(), recorded_pieces(invocation.home_path)
    programs = {PROGRAMS[name].memories for name in words}
    memories = [memory for memory in machine.discover(folders, Path.cwd()).memories if memory.program in programs]
    new_agents = _new_agents(invocation, memories, plan)
    if "openclaw" in words and not {"--agent", "--all-agents"}.intersection(words["openclaw"]):
        # OpenClaw runs its servers in no project's folder, by which `recalld mcp` would choose among several agents.
        workspaces = [os.path.realpath(memory.workspace) for memory in memories if memory.program == "openclaw"]
        known = [(agent.id, agent.workspace) for agent in invocation.settings.agents]
        known += [(memory.name, memory.workspace) for memory in new_agents]
        agents = {agent: None for agent, workspace in known if os.path.realpath(workspace) in workspaces}
        if len(agents) == 1:
            words["openclaw"] = [*words["openclaw"], "--agent", *agents]
        elif len(known) > 1:
            plan.remarks.append(
                "OpenClaw runs in no project's folder: with several agents add --agent ID or --all-agents"
            )
    waiting = waiting_events([agent.context for agent in invocation.settings.agents])
    for name in words:
        plan_server(name, folders.server_files[name], words[name], recorded, plan)
        if with_hooks and name in folders.hook_files:
            command = shlex.join(words_for_program(invocation, "hook", name))
            plan_hooks(name, folders.hook_files[name], command, waiting, recorded, plan)
    if new_agents:
        plan_agents(new_agents, config_to_write(invocation.config, home=invocation.home), plan)
    return plan


def _plan_rules(invocation: Invocation, names: Sequence[str], scope: str | None, plan: Plan) -> None:
    """Plan rules for the programs that read some, where the user wants them, and renew earlier ones."""
    recorded = {piece.place: piece for piece in recorded_pieces(invocation.home_path) if piece.kind == "rules"}
    pieces = [piece for piece in recorded.values() if piece.program in names and scope is None]
    unasked = set(names) - {piece.program for piece in pieces}
    hook_files = program_folders().hook_files
    files = {name: hook_files[name].with_name(file) for name, file in RULES_FILES.items() if name in unasked}
    if scope is None and files and sys.stdin.isatty():
        question = (
            f"Add rules about memory to {' and '.join(map(str, files.values()))} (user), to a file here (project)"
        )
        scope = click.prompt(f"{question}, or none?", type=_SCOPES, default="none", err=True)
    for name, file in files.items() if scope in {"user", "project"} else ():
        place = Path.cwd() / file.name if scope == "project" else file
        piece = Piece(name, "rules", str(place), (), not place.exists())
        pieces.append(recorded.get(piece.place, piece))
    for piece in pieces:
        try:
            words = words_for_program(invocation, "remember")
            plan_rules(piece, plan, words, renews=piece.program not in unasked)
        except UserError as error:
            plan.remarks.append(f"{PROGRAMS[piece.program].title} gets no new rules: {error}")


def _new_agents(invocation: Invocation, memories: Iterable[DiscoveredMemory], plan: Plan) -> list[DiscoveredMemory]:
    """Return the memories that no agent has, each with a free id.

    An agent with a remembered workspace is not in the settings yet; it keeps its id and its notes there.
    """
    remembered = remembered_workspaces(invocation.home_path)
    folders = {agent_id: os.path.realpath(workspace.folder) for agent_id, workspace in remembered.items()}
    agents = [
        agent for agent in invocation.settings.agents if os.path.realpath(agent.workspace) != folders.get(agent.id, "")
    ]
    taken = {os.path.realpath(agent.workspace) for agent in agents} | {agent.id for agent in agents}
    ids = {folder: agent_id for agent_id, folder in folders.items() if not {folder, agent_id} & taken}
    unnamed, renamed = [], []
    for memory in memories:
        workspace = os.path.realpath(memory.workspace)
        owner = next((agent for agent in agents if os.path.realpath(agent.workspace) == workspace), None)
        if workspace in ids:
            name = ids.pop(workspace)
            notes = [*(remembered[name].extra_paths or ()), *memory.settings.get("extra_paths", ())]
            settings = {**memory.settings, **({"extra_paths": [*dict.fromkeys(notes)]} if notes else {})}
            renamed.append(replace(memory, name=name, settings=settings))
        elif any(memory.sessions and _has_sessions(agent, memory) for agent in agents):
            continue
        elif owner is None:
            unnamed.append(memory)
        elif memory.sessions:
            sessions = ", ".join(f'"{folder}"' for folder in memory.sessions)
            plan.remarks.append(
                f"agent {owner.id} has {workspace} already; for its conversations give it sessions = [{sessions}]"
            )
    reserved = [*remembered, *(agent.id for agent in agents)]
    return [*renamed, *with_unique_names(unnamed, reserved=reserved)]


def _has_sessions(agent: AgentSettings, memory: DiscoveredMemory) -> bool:
    folders = [os.path.realpath(folder) for folder in agent.sessions]
    sessions = [Path(os.path.realpath(session)) for session in memory.sessions]
    return all(any(session.is_relative_to(folder) for folder in folders) for session in sessions)


def _next_steps(invocation: Invocation, connected: Sequence[str], tools: Sequence[str], plan: Plan) -> Iterator[str]:
    if connected:
        yield f"tested: the server answers with {', '.join(tools)}"
    yield from (f"next: {PROGRAMS[name].title}: {PROGRAMS[name].next_step}" for name in connected)
    if any(change.adds and (change.adds.program, change.adds.kind) == ("codex", "hooks") for change in plan.changes):
        yield "next: Codex: trust the hooks, by /hooks there"
    if running_service(invocation.home_path) is None:
        yield to_type("next: `recalld up` indexes everything and keeps it fresh")


def _listing(invocation: Invocation) -> Iterator[dict[str, Any]]:
    pieces = {(piece.program, piece.file, piece.words) for piece in recorded_pieces(invocation.home_path)}
    for name, program in PROGRAMS.items():
        file, entry, problem = program_folders().server_files[name], None, None
        try:
            entry = registered_entry(program, file)
        except UserError as error:
            problem = str(error)
        fields = {"name": name, "title": program.title, "settings": str(file), "installed": is_installed(program, file)}
        command = words_of(entry)
        by_connect = (name, str(file), tuple(command)) in pieces
        state = {"connected": entry is not None, "byConnect": by_connect, "command": command, "problem": problem}
        yield {**fields, **state}


def _listing_lines(listing: Iterable[dict[str, Any]]) -> Iterator[str]:
    for row in listing:
        state = "not connected" if row["installed"] else "not installed"
        if row["connected"]:
            state = f"connected{'' if row['byConnect'] else ', not by connect'}: {shlex.join(row['command'])}"
        yield click.style(row["name"].ljust(12), bold=True) + printable_name(row["problem"] or state)
    yield to_type("`recalld connect PROGRAM` connects one, after showing every change.")
