"""Findings on a machine."""

from __future__ import annotations

import json
import os
import re
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.documents.agent_files import AgentFiles
from recalld.commands.discover import discovery_lines
from recalld.discover.machine import discover, working_folder
from recalld.discover.memories import DiscoveredMemory, Discovery, FileCount, settings_file, with_unique_names
from recalld.settings.load import load
from recalld.settings.program_folders import ProgramFolders
from tests.openclaw_database import OpenClawDatabase
from tests.opencode_database import OpenCodeDatabase
from tests.transcript_files import message_line


class Machine:
    """A home folder with whatever a test puts there."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.here = home / "here"
        self.here.mkdir(parents=True)

    def write(self, path: str, text: str = "text", *, at: float | None = None) -> Path:
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        if at is not None:
            os.utime(file, (at, at))
        return file

    def discover(self, *, seconds: float = 60.0, **variables: str) -> Discovery:
        return discover(ProgramFolders.named_by(variables), self.here, seconds=seconds)

    def names(self) -> list[str]:
        return [one.name for one in self.discover().memories]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return Machine(tmp_path / "user")


def only(discovery: Discovery) -> DiscoveredMemory:
    assert len(discovery.memories) == 1, [one.name for one in discovery.memories]
    return discovery.memories[0]


# OpenClaw


def test_openclaws_agents_have_their_workspaces_and_sessions(machine: Machine) -> None:
    machine.write(
        ".openclaw/openclaw.json",
        """{ // mine
          agents: {
            defaults: { memorySearch: { extraPaths: ['../wiki'], cache: { maxEntries: 7 } } },
            list: [ { id: 'main', default: true, workspace: '~/notes' }, { id: 'Work' }, ],
          },
        }""",
    )
    machine.write("notes/MEMORY.md", at=2_000_000_000)
    machine.write("notes/memory/a.md")
    machine.write("wiki/page.md")
    machine.write(".openclaw/agents/main/sessions/a.jsonl")
    machine.write(".openclaw/agents/main/sessions/a.jsonl.reset.2026-01-01T00-00-00.000Z")
    machine.write(".openclaw/agents/main/sessions/sessions.json")
    machine.write(".openclaw/workspace-Work/memory/b.md")
    machine.write(".openclaw/agents/work/sessions/deep/b.jsonl")
    machine.write(".openclaw/agents/笔记/sessions/c.jsonl")
    main, work, alone = machine.discover().memories
    assert (main.name, main.workspace) == ("main", machine.home / "notes")
    assert main.sessions == (str(machine.home / ".openclaw/agents/main/sessions"),)
    assert (main.notes.files, main.transcripts.files, main.newest) == (3, 2, 2_000_000_000)
    assert (main.settings, main.shared) == ({"extra_paths": ["../wiki"]}, {"cache": {"max_entries": 7}})
    assert (work.name, work.workspace, work.transcripts.files) == ("Work", machine.home / ".openclaw/workspace-Work", 1)
    assert alone.sessions == (str(machine.home / ".openclaw/agents/笔记/sessions"),)
    assert any("does not exist" in remark for remark in alone.remarks)


def test_agents_without_settings_in_an_older_folder_and_in_a_moved_one_are_found(
    machine: Machine, tmp_path: Path
) -> None:
    machine.write(".openclaw/workspace/MEMORY.md")
    found = only(machine.discover())
    assert (found.name, found.workspace) == ("main", machine.home / ".openclaw/workspace")
    moved, config = tmp_path / "moved", machine.write("elsewhere.json5", "{agents: {list: [{id: 'other'}]}}")
    (moved / "workspace").mkdir(parents=True)
    found = only(machine.discover(OPENCLAW_STATE_DIR=str(moved), OPENCLAW_CONFIG_PATH=str(config)))
    assert (found.name, found.workspace) == ("other", moved / "workspace")
    older = Machine(tmp_path / "older")
    older.write(".clawdbot/clawdbot.json", '{"agents": {"defaults": {"workspace": "~/clawd"}}}')
    machine.write("clawd/MEMORY.md")
    assert only(machine.discover(OPENCLAW_STATE_DIR=str(older.home / ".clawdbot"))).workspace == machine.home / "clawd"


@pytest.mark.parametrize("text", ['{"env": {"KEY": "sk-secret"}, oops', "[]", '"sk-secret"'])
def test_settings_without_sense_are_reported_and_the_agents_found_all_the_same(machine: Machine, text: str) -> None:
    machine.write(".openclaw/openclaw.json", text)
    machine.write(".openclaw/agents/main/sessions/a.jsonl")
    discovery = machine.discover()
    assert only(discovery).name == "main"
    (problem,) = discovery.problems
    assert "openclaw.json" in problem
    assert "sk-secret" not in str(discovery)


def test_sessions_in_openclaws_database_are_found_and_counted(machine: Machine) -> None:
    machine.write(".openclaw/workspace/MEMORY.md")
    machine.write(".openclaw/agents/main/sessions/old.jsonl")
    sessions = {name: machine.home / ".openclaw/agents" / name / "sessions" for name in ("main", "other")}
    for name, folder in sessions.items():
        with closing(OpenClawDatabase(folder.parent)) as database:
            database.add(f"s-{name}", [message_line("openclaw", "user", "hello")])
    discovery = machine.discover()
    assert [(memory.name, memory.sessions, memory.remarks[1:]) for memory in discovery.memories] == [
        (name, (str(folder),), ()) for name, folder in sessions.items()
    ]
    counts = [(memory.transcripts.files, memory.transcripts.in_database) for memory in discovery.memories]
    assert counts == [(2, 1), (1, 1)]
    lines = "\n".join(discovery_lines(discovery))
    assert re.findall(r"(\d+) transcripts? \((?:4 B, )?(\d+) in a database", lines) == [("2", "1"), ("1", "1")]


def test_a_database_that_cannot_be_read_is_one_sentence(machine: Machine) -> None:
    machine.write(".openclaw/workspace/MEMORY.md")
    machine.write(".openclaw/agents/main/agent/openclaw-agent.sqlite", "no database" * 100)
    (remark,) = only(machine.discover()).remarks
    assert "openclaw-agent.sqlite" in remark


def test_a_configured_agent_without_anything_on_the_disk_is_said(machine: Machine) -> None:
    machine.write(
        ".openclaw/openclaw.json", "{agents: {list: [{id: 'ghost', workspace: '/nowhere'}, {id: '../x'}, 3]}}"
    )
    discovery = machine.discover()
    assert discovery.memories == ()
    unnamed, ghost, strange = discovery.problems
    assert "1 of its agents" in unnamed
    assert "ghost" in ghost
    assert "../x" in strange


@pytest.mark.parametrize(
    ("agents", "workspaces"),
    [
        # The marked one has the general workspace, the others a folder in it or beside the state folder's own.
        ("defaults: {workspace: '~/general'}, entries: {a: {}, b: {default: true}}", ["general/a", "general"]),
        ("entries: {b: {}, main: {default: true}}", [".openclaw/workspace-b", ".openclaw/workspace"]),
        # Without a mark each has its own, unless there is but one.
        (
            "ownership: 'explicit', defaults: {workspace: '~/general'}, entries: {a: {}, b: {}}",
            ["general/a", ".openclaw/workspace-b"],
        ),
        ("ownership: 'explicit', defaults: {workspace: '~/general'}, entries: {b: {}}", ["general"]),
        ("entries: {a: {workspace: '~/notes'}}", ["notes"]),
        # Before the summer of 2026 the first one had it, and no other looked below it.
        ("defaults: {workspace: '~/general'}, list: [{id: 'z'}, {id: 'a'}]", ["general", ".openclaw/workspace-a"]),
        ("list: [{id: 'b'}, {id: 'm', default: true}]", [".openclaw/workspace-b", ".openclaw/workspace"]),
    ],
)
def test_an_agent_without_a_workspace_of_its_own_has_the_one_that_openclaw_gives_it(
    machine: Machine, agents: str, workspaces: list[str]
) -> None:
    for folder in ("general/a", "notes", ".openclaw/workspace", ".openclaw/workspace-a", ".openclaw/workspace-b"):
        (machine.home / folder).mkdir(parents=True)
    machine.write(".openclaw/openclaw.json", f"{{agents: {{{agents}}}}}")
    discovery = machine.discover()
    assert [one.workspace for one in discovery.memories] == [machine.home / folder for folder in workspaces]
    assert discovery.problems == ()


def test_included_files_are_a_problem_and_the_rest_comes_along(machine: Machine) -> None:
    machine.write(".openclaw/workspace/MEMORY.md")
    machine.write(".openclaw/openclaw.json", "{agents: {$include: './agents.json5'}, memory: {backend: 'qmd'}}")
    discovery = machine.discover()
    assert only(discovery).settings["backend"] == "qmd"
    [problem] = discovery.problems
    assert "includes" in problem


# Claude Code and Codex


def session(cwd: Path) -> str:
    return json.dumps({"type": "summary"}) + "\n" + json.dumps({"type": "user", "cwd": str(cwd)}) + "\n"


def test_claude_codes_projects_have_the_folder_that_their_sessions_name(machine: Machine) -> None:
    project = machine.home / "my-project"
    project.mkdir()
    machine.write(".claude/projects/-user-my-project/a.jsonl", session(project), at=1000)
    machine.write(".claude/projects/-user-my-project/a/subagents/agent-1.jsonl", at=3000)
    machine.write(".claude/projects/-user-my-project/memory/MEMORY.md", at=1000)
    machine.write(".claude/projects/-user-old/b.jsonl", session(machine.home / "old"), at=2000)
    machine.write(".claude/projects/-user-none/c.jsonl", "{}\n", at=500)
    (machine.home / ".claude/projects/-user-empty").mkdir()
    machine.write(".claude/projects/-src-app/memory/build.md", at=100)
    latest, old, none, notes = machine.discover().memories
    assert (notes.workspace.name, notes.notes.files, documents(notes, machine)) == ("-src-app", 1, {"memory/build.md"})
    assert (latest.name, latest.workspace, latest.transcripts.files) == ("my-project", project, 2)
    folder = machine.home / ".claude/projects/-user-my-project"
    assert latest.sessions == (str(folder),)
    assert latest.settings == {"extra_paths": [str(folder / "memory")]}
    assert latest.notes.files == 1
    assert (old.name, old.workspace) == ("old", machine.home / ".claude/projects/-user-old")
    assert "is gone" in old.remarks[0]
    assert (none.name, none.workspace.name) == ("user-none", "-user-none")


@pytest.mark.parametrize(
    "text", ["", "\0\0", '{"cwd": 3}\n', '{"cwd": "relative"}\n', '{"cwd": "/a', '"cwd"\n', "[[[\n"]
)
def test_damaged_sessions_name_no_folder(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    assert working_folder(tmp_path) is None


def test_codex_is_one_memory_with_its_own_notes(machine: Machine) -> None:
    machine.write(".codex/sessions/2026/02/03/rollout-a.jsonl.zst")
    machine.write(".codex/archived_sessions/rollout-b.jsonl")
    found = only(machine.discover())
    assert (found.name, found.workspace, found.transcripts.files) == ("codex", machine.home / ".codex", 2)
    assert [Path(folder).name for folder in found.sessions] == ["sessions", "archived_sessions"]
    machine.write("moved/memories/MEMORY.md")
    machine.write("moved/memories/rollout_summaries/2026-10-03T09-00-00-fix.md")
    found = only(machine.discover(CODEX_HOME=str(machine.home / "moved")))
    assert (found.settings, found.notes.files) == ({"extra_paths": [str(machine.home / "moved/memories")]}, 2)


def test_gemini_cli_and_qwen_code_have_a_memory_for_each_folder_they_work_in(machine: Machine) -> None:
    app, site = machine.home / "app", machine.home / "site"
    for folder in (app, site):
        folder.mkdir()
    machine.write(".gemini/tmp/app/.project_root", f"{app}\n")
    machine.write(".gemini/tmp/app/chats/session-2026-11-28T08-01-a5.jsonl")
    machine.write(".gemini/tmp/app/chats/a501145c/helper.jsonl")
    machine.write(".gemini/tmp/app/memory/MEMORY.md")
    machine.write(".gemini/tmp/gone/chats/session-b.jsonl")
    machine.write(".qwen/projects/-user-site/chats/c.jsonl", session(site))
    machine.write(".qwen/projects/-user-site/subagents/c/agent.jsonl")
    machine.write(".qwen/projects/-user-site/meta.json")
    gone, gemini, qwen = sorted(machine.discover().memories, key=lambda memory: memory.title)
    assert (gemini.program, gemini.workspace, gemini.transcripts.files) == ("gemini-cli", app, 2)
    assert gemini.settings == {"extra_paths": [str(machine.home / ".gemini/tmp/app/memory")]}
    assert (gone.workspace.name, len(gone.remarks)) == ("gone", 1)
    assert (qwen.program, qwen.workspace, qwen.transcripts.files) == ("qwen-code", site, 2)
    moved = machine.discover(GEMINI_CLI_HOME=str(machine.home / "no"), QWEN_HOME=str(machine.home / "no"))
    assert moved.memories == ()


def test_copilot_and_cursor_are_one_memory_each(machine: Machine) -> None:
    machine.write(".copilot/session-state/d0ceb630/events.jsonl")
    machine.write(".copilot/session-state/d0ceb630/workspace.yaml")
    machine.write(".cursor/projects/user-app/agent-transcripts/7/7.jsonl")
    copilot, cursor = machine.discover().memories
    assert (copilot.name, copilot.workspace.name, copilot.transcripts.files) == ("copilot", ".copilot", 1)
    assert (cursor.name, cursor.workspace.name, cursor.transcripts.files) == ("cursor", ".cursor", 1)
    moved = machine.discover(COPILOT_HOME=str(machine.home / "no"), CURSOR_CONFIG_DIR=str(machine.home / "no"))
    assert moved.memories == ()


def test_opencodes_database_is_one_memory_with_its_folder_as_sessions(machine: Machine) -> None:
    folder = machine.home / ".local/share/opencode"
    with closing(OpenCodeDatabase(folder)) as database:
        database.add("ses_a")
        database.say("ses_a", "user", "question")
        memory = only(machine.discover())
    assert (memory.name, memory.program, memory.sessions) == ("opencode", "opencode", (str(folder),))
    assert (memory.transcripts.files, memory.transcripts.in_database) == (1, 1)
    assert machine.discover(XDG_DATA_HOME=str(machine.home / "no")).memories == ()


def test_conversations_that_are_found_and_not_read_are_named_by_program(machine: Machine) -> None:
    machine.write(".gemini/tmp/app/chats/session-2025-10-01T09-00-a5.json", "{}")
    machine.write(".local/share/goose/sessions/sessions.db")
    assert machine.discover().memories == ()
    assert {problem.partition(":")[0] for problem in machine.discover().problems} == {"Gemini CLI", "Goose"}


# Memory programs


def test_folders_of_basic_memory_and_qmd_are_found_as_their_settings_name_them(machine: Machine) -> None:
    for path in ("knowledge/a.md", "work/b.md", "meetings/2026/c.md", "vault/d.md"):
        machine.write(path)
    projects = {"main": str(machine.home / "knowledge"), "work": {"path": "~/work"}, "gone": "/gone", "bad": 3}
    machine.write(".basic-memory/config.json", json.dumps({"projects": projects}))
    machine.write(
        ".config/qmd/index.yml",
        f'global_context: "path: x"\ncollections:\n  a:\n    path: ~/meetings\n    pattern: "**/*.md"\n'
        f'  b:\n    path: "{machine.home / "vault"}"\n  c:\n    path: ~/knowledge\n  d:\n    path: /gone\n',
    )
    found = {memory.name: memory for memory in machine.discover().memories}
    assert {name: memory.program for name, memory in found.items()} == {
        "main": "basic-memory",
        "work": "basic-memory",
        "meetings": "qmd",
        "vault": "qmd",
    }
    assert documents(found["meetings"], machine) == {"2026/c.md"}
    assert documents(found["work"], machine) == {"b.md"}


@pytest.mark.parametrize("text", ["", "[]", '{"projects": 3}', "[[[", "collections: {"])
def test_settings_of_memory_programs_that_cannot_be_understood_hide_nothing_else(machine: Machine, text: str) -> None:
    machine.write(".basic-memory/config.json", text)
    machine.write(".config/qmd/index.yml", text)
    assert only(discovered := vault_and(machine)).program == "obsidian", discovered


def test_notes_of_memsearch_are_found_in_the_projects_of_claude_code(machine: Machine) -> None:
    machine.write("project/.memsearch/memory/2026-11-20.md")
    machine.write(".claude/projects/-p/s.jsonl", json.dumps({"cwd": str(machine.home / "project")}) + "\n")
    found = {memory.program: memory for memory in machine.discover().memories}
    assert found["memsearch"].name == "project-memsearch"
    assert documents(found["memsearch"], machine) == {"memory/2026-11-20.md"}


# Obsidian


def vault_and(machine: Machine) -> Discovery:
    vault(machine, "notes")
    return machine.discover()


def documents(found: DiscoveredMemory, machine: Machine) -> set[str]:
    """Return the notes that an agent of these settings indexes, as keys name them."""
    file = machine.home / "recalld.toml"
    file.write_text(settings_file([found]))
    assert 'workspace = "~/' in file.read_text(), "another machine may have another user's folder"
    settings = load(config=str(file), home=str(machine.home / "recalld"), environment={}).settings
    return {key.path for key in AgentFiles(settings.agents[0]).scan().documents if key.source == "memory"}


def vault(machine: Machine, path: str) -> Path:
    machine.write(f"{path}/.obsidian/app.json", "{}")
    machine.write(f"{path}/.obsidian/plugins/x/README.md")
    machine.write(f"{path}/.trash/old.md")
    machine.write(f"{path}/Ideas/garden.md")
    machine.write(f"{path}/2026-03-01.md")
    return machine.home / path


def test_a_vault_is_a_workspace_of_its_own_with_all_its_notes_and_no_copy(machine: Machine) -> None:
    folder = vault(machine, "Documents/Second Brain")
    before = sorted(folder.rglob("*"))
    found = only(machine.discover())
    assert (found.name, found.program, found.workspace) == ("Second-Brain", "obsidian", folder)
    assert found.notes.files == 2
    assert documents(found, machine) == {"Ideas/garden.md", "2026-03-01.md"}
    assert sorted(folder.rglob("*")) == before


ICLOUD = "Library/Mobile Documents/iCloud~md~obsidian/Documents/a"


@pytest.mark.parametrize("place", ["here", "here/inside", "notes", "Obsidian/a", "Dropbox/a", ICLOUD])
def test_vaults_are_found_in_the_usual_places_and_around_the_current_folder(machine: Machine, place: str) -> None:
    folder = vault(machine, place)
    assert only(machine.discover()).workspace == folder


FLATPAK, SNAP = ".var/app/md.obsidian.Obsidian/config", "snap/obsidian/current/.config"


@pytest.mark.parametrize("place", [".config", "Library/Application Support", FLATPAK, SNAP])
def test_vaults_are_found_wherever_obsidian_says_that_they_are(machine: Machine, place: str) -> None:
    folder = vault(machine, "srv/far/away")
    gone = {"path": str(machine.home / "gone"), "ts": 2}
    machine.write(
        f"{place}/obsidian/obsidian.json",
        json.dumps({"vaults": {"1f": {"path": str(folder), "ts": 1, "open": True}, "2f": gone}}),
    )
    assert only(machine.discover()).workspace == folder
    assert only(machine.discover(XDG_CONFIG_HOME=str(machine.home / ".config"))).workspace == folder


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"vaults": []}', '{"vaults": {"a": {"path": 3}, "b": 4}}', "[[["])
def test_a_list_of_vaults_that_cannot_be_understood_hides_nothing_else(machine: Machine, text: str) -> None:
    folder = vault(machine, "here")
    machine.write(".config/obsidian/obsidian.json", text)
    assert only(machine.discover()).workspace == folder


def test_a_vault_that_is_a_workspace_already_is_found_once(machine: Machine) -> None:
    folder = vault(machine, "notes")
    machine.write("notes/MEMORY.md")
    (machine.here / "link").symlink_to(folder)
    machine.write(".config/obsidian/obsidian.json", json.dumps({"vaults": {"a": {"path": f"{machine.here}/link"}}}))
    assert len(machine.discover().memories) == 1
    machine.write(".openclaw/openclaw.json", json.dumps({"agents": {"defaults": {"workspace": str(folder)}}}))
    assert only(machine.discover()).program == "openclaw"


def test_the_vault_in_which_claude_code_works_is_all_of_its_workspace(machine: Machine) -> None:
    folder = vault(machine, "notes")
    machine.write(".claude/projects/-notes/a.jsonl", session(folder))
    machine.write(".claude/projects/-notes/memory/MEMORY.md")
    found = only(machine.discover())
    own = machine.home / ".claude/projects/-notes/memory"
    assert (found.program, found.workspace, found.notes.files) == ("claude-code", folder, 3)
    assert found.settings == {"extra_paths": [".", str(own)]}
    assert documents(found, machine) == {"Ideas/garden.md", "2026-03-01.md", f"{own}/MEMORY.md"}


# Plain folders


def test_folders_of_notes_around_the_current_one_are_found_once(machine: Machine) -> None:
    machine.write("here/MEMORY.md")
    machine.write("here/inside/memory/a.md")
    machine.write("here/empty/memory/a.txt")
    machine.write("here/.hidden/MEMORY.md")
    machine.write("here/node_modules/MEMORY.md")
    machine.write("memory/a.md")
    assert machine.names() == ["here", "user", "inside"]
    machine.write(".openclaw/openclaw.json", json.dumps({"agents": {"defaults": {"workspace": str(machine.here)}}}))
    assert machine.names() == ["main", "user", "inside"]


# Names, counts, settings


def test_names_are_ids_and_each_is_used_once(tmp_path: Path) -> None:
    def found(name: str) -> DiscoveredMemory:
        return DiscoveredMemory(name=name, program="folder", title=name, workspace=tmp_path)

    wanted = ["main", "Main", "a b/c", "...", "笔记", "main-2", "x" * 100]
    names = [one.name for one in with_unique_names(map(found, wanted))]
    assert names == ["main", "Main-2", "a-b-c", "folder", "folder-2", "main-2-2", "x" * 40]


def test_counting_ends_in_time_and_says_so(machine: Machine) -> None:
    machine.write(".claude/projects/-a/a.jsonl", session(machine.here))
    machine.write(".codex/sessions/a.jsonl")
    discovery = machine.discover(seconds=0.0)
    assert [one.transcripts for one in discovery.memories] == [FileCount(complete=False)] * 2
    assert "at least 0 transcripts" in "\n".join(discovery_lines(discovery))


@given(st.text(), st.text(), st.lists(st.text()), st.text())
def test_whatever_folders_are_called_the_settings_say_it(
    title: str, workspace: str, sessions: list[str], remark: str
) -> None:
    one = DiscoveredMemory(
        name="a",
        program="folder",
        title=title,
        workspace=Path("/" + workspace.replace("\0", "")),
        sessions=tuple(sessions),
        settings={
            "query": {"max_results": 5},
            "extra_paths": [{"path": remark, "exclude": sessions}],
            "model": workspace,
        },
        shared={"cache": {"enabled": False}},
        remarks=(remark,),
    )
    written = tomllib.loads(settings_file([one]))
    (agent,) = written["agents"]
    assert (agent["workspace"], agent.get("sessions", [])) == (str(one.workspace), sessions)
    assert (agent["extra_paths"], agent["model"]) == (one.settings["extra_paths"], workspace)
    assert (agent["query"], written["cache"]) == (one.settings["query"], one.shared["cache"])


def test_a_folder_whose_name_is_not_utf8_is_said_and_left_out(machine: Machine) -> None:
    machine.write(os.fsdecode(b"here/\xff\xfe/memory/a.md"))
    assert machine.discover() == Discovery(), "folders of such names are never looked into"
    machine.write(os.fsdecode(b".claude/projects/\xff/a.jsonl"))
    discovery = machine.discover()
    assert discovery.memories == ()
    (problem,) = discovery.problems
    assert "UTF-8" in problem
    assert all(line.encode() for line in discovery_lines(discovery))
