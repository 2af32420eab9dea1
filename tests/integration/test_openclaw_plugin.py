"""Behaviour of the plug-ins for OpenClaw in cases that the real OpenClaw does not bring about."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.settings import Settings
from tests.daemon import REPOSITORY
from tests.raw_server import HANG, announce, answer, raw_server
from tests.serving import running
from tests.tool_docs import tools_json
from tests.transcript_files import message_line
from tests.written_index import write_index

PLUGIN = REPOSITORY / "deploy" / "openclaw"
NOTE = {"path": "memory/note.md", "startLine": 1, "source": "memory"}
CURATED = {"path": "MEMORY.md", "startLine": 1, "source": "memory"}
TALK = {"path": "sessions/talk.jsonl", "startLine": 1, "source": "sessions"}

#: Registers a plug-in with a stand-in for OpenClaw, evaluates an expression over what it registered, prints the result.
DRIVER = """
const [file, config, expression] = process.argv.slice(1);
const tools = {}, hooks = {};
let supplement, memory;
(await import(file)).default.register({
  pluginConfig: JSON.parse(config),
  on: (name, handler) => { hooks[name] = handler; },
  registerMemoryCapability: (capability) => { memory = capability; },
  registerMemoryCorpusSupplement: (given) => { supplement = given; },
  registerMemoryPromptSupplement: () => {},
  registerTool: (factory, { names }) => { tools[names[0]] = factory; },
});
const evaluate = Object.getPrototypeOf(async () => {}).constructor;
const given = { tools, supplement, memory, hooks };
const result = await new evaluate(...Object.keys(given), "return " + expression)(...Object.values(given));
console.log(JSON.stringify(result ?? null));
process.exit();
"""


def evaluated(plugin: Path, expression: str, **config: object) -> Any:
    """The value of a JavaScript expression over `tools`, `supplement`, `memory` and `hooks`."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node cannot be had here")
    command = [node, "--input-type=module", "--eval", DRIVER, str(plugin / "index.js"), json.dumps(config), expression]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture
def url(tmp_path: Path, workspace: Path) -> Iterator[str]:
    """A service of one agent whose memory channels do not see."""
    (workspace / "MEMORY.md").write_text("The vault is called Basalt.\n", "utf-8")
    (workspace / "memory" / "note.md").write_text("The crane is orange.\n", "utf-8")
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    scope = {"rules": [{"action": "deny", "chat_type": "channel"}]}
    agent = {"id": "main", "workspace": workspace, "provider": "none", "sessions": [str(sessions)], "scope": scope}
    agent["context"] = {"injection": {"enabled": True, "min_score": 0, "timeout_ms": 10_000}}
    settings = Settings.model_validate({"home": tmp_path / "home", "agents": [agent]})
    write_index(settings).close()
    (sessions / "talk.jsonl").write_bytes(message_line("plain", "user", "the numbat is shy"))
    (sessions / "sessions.json").write_text('{"agent:main:telegram:group:7": {"sessionId": "talk"}}', "utf-8")
    with running(settings) as client:
        yield str(client.base_url)


@pytest.mark.parametrize(
    ("session", "sandboxed", "seen"),
    [
        ("agent:main:main", False, [NOTE, CURATED, TALK]),
        ("agent:main:telegram:group:7", False, [NOTE, TALK]),
        ("agent:main:telegram:group:42", False, [NOTE]),
        ("agent:main:slack:channel:general", False, []),
        ("agent:other:main", False, []),
        ("agent:main:main", True, [NOTE, CURATED]),
        (None, False, [NOTE, CURATED]),
    ],
)
def test_hits_are_authorized_by_the_scope_of_the_session_that_asks(
    url: str, session: str | None, sandboxed: bool, seen: list[dict[str, object]]
) -> None:
    asked = {"agentId": "main", "requesterSessionKey": session, "sandboxed": sandboxed, "hits": [NOTE, CURATED, TALK]}
    expression = f"memory.runtime.authorizeSearchHits({json.dumps(asked)})"
    assert evaluated(PLUGIN / "memory", expression, baseUrl=url) == seen


def test_a_sandboxed_conversation_reads_no_transcript(url: str) -> None:
    call = 'tools.memory_get({{ agentId: "main", sandboxed: {} }}).execute("1", {{ path: "sessions/talk.jsonl" }})'
    seen = evaluated(PLUGIN / "memory", call.format("false"), baseUrl=url)["details"]
    assert (seen["status"], "numbat" in seen["text"]) == ("ok", True)
    assert evaluated(PLUGIN / "memory", call.format("true"), baseUrl=url)["details"]["status"] == "not_found"
    get = 'supplement.get({ lookup: "sessions/talk.jsonl", sandboxed: true })'
    assert evaluated(PLUGIN, get, baseUrl=url) is None


def test_the_status_is_recallds(url: str, workspace: Path) -> None:
    ask = 'memory.runtime.getMemorySearchManager({ agentId: "main", purpose: "status" })'
    shown = f"(async () => {{ const {{ manager, error }} = await {ask}; return manager?.status() ?? error; }})()"
    status = evaluated(PLUGIN / "memory", shown, baseUrl=url)
    assert (status["provider"], status["files"], status["chunks"], status["dirty"]) == ("none", 2, 2, True)
    assert status["sourceCounts"] == [
        {"source": "memory", "files": 2, "chunks": 2},
        {"source": "sessions", "files": 0, "chunks": 0},
    ]
    assert (status["vector"]["enabled"], status["fts"]["available"]) == (False, True)
    assert (status["workspaceDir"], status["custom"]["searchMode"]) == (str(workspace), "keyword")
    with raw_server([answer(b"{}", status="503 Away")]) as server:
        assert "recalld refused" in evaluated(PLUGIN / "memory", shown, baseUrl=server.url)


def test_the_flush_plan_is_recallds_from_the_second_question_on(url: str) -> None:
    ask = "memory.flushPlanResolver({ cfg, contextWindowTokens: 100000 })"
    until = f"(async () => {{ let plan; while (!(plan = {ask})) await new Promise(setImmediate); return plan; }})()"
    first, plan = evaluated(PLUGIN / "memory", f"[{ask}, await {until}]".replace("cfg", "cfg: {}"), baseUrl=url)
    assert first is None
    assert plan["relativePath"].startswith("memory/2")
    assert plan["relativePath"] in plan["prompt"]
    assert (plan["reserveTokensFloor"], plan["softThresholdTokens"]) == (20_000, 4_000)
    flush = {"prompt": "Sichere alles.", "systemPrompt": "x" * 10_001}
    cfg = {"agents": {"defaults": {"compaction": {"memoryFlush": flush}}}}
    own = evaluated(PLUGIN / "memory", f"await {until}".replace("cfg", f"cfg: {json.dumps(cfg)}"), baseUrl=url)
    assert [word in own["prompt"] for word in ("Sichere alles.", plan["relativePath"], "NO_REPLY")] == [True] * 3
    assert own["systemPrompt"] == plan["systemPrompt"], "a longer text is not taken"
    off = "cfg: { agents: { defaults: { compaction: { memoryFlush: { enabled: false } } } } }"
    assert evaluated(PLUGIN / "memory", ask.replace("cfg", off), baseUrl=url) is None


def test_a_silent_service_is_an_empty_answer_with_the_reason_after_the_deadline() -> None:
    with raw_server([HANG], [HANG], [HANG]) as server:
        config = {"baseUrl": server.url, "timeoutMs": 200}
        search = 'supplement.search({ query: "crane" }).catch((error) => error.message)'
        assert evaluated(PLUGIN, search, **config).endswith("in time")
        call = 'tools.memory_search({ agentId: "main" }).execute("1", { query: "crane" })'
        found = evaluated(PLUGIN / "memory", call, **config)["details"]
        assert (found["results"], bool(found["error"])) == ([], True)
        managed = (
            '(async () => { const { manager } = await memory.runtime.getMemorySearchManager({ agentId: "main" });'
            ' return [await manager.search("crane"), manager.status().lastSyncError]; })()'
        )
        hits, reason = evaluated(PLUGIN / "memory", managed, **config)
        assert (hits, bool(reason)) == ([], True)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """The plug-ins beside a stand-in for OpenClaw's SDK: a session whose key ends with "boxed" has a sandbox."""
    sdk = tmp_path / "node_modules" / "openclaw"
    sdk.mkdir(parents=True)
    exports = {"name": "openclaw", "type": "module", "exports": {"./plugin-sdk/sandbox": "./sandbox.js"}}
    (sdk / "package.json").write_text(json.dumps(exports))
    is_boxed = 'sessionKey.endsWith("boxed")'
    status = f"export const resolveSandboxRuntimeStatus = ({{ sessionKey }}) => ({{ sandboxed: {is_boxed} }});"
    (sdk / "sandbox.js").write_text(status)
    return Path(shutil.copytree(PLUGIN, tmp_path / "plugin"))


def before_prompt(plugin: Path, session: str = "main", /, *, config: dict[str, Any], **turn: object) -> str:
    """Return the text that a plug-in puts before a prompt of this session; empty without any."""
    event = {"prompt": "Which crane is orange: Basalt?", "messages": [{"role": "user", "content": "Hello"}]}
    context = {"agentId": "main", "sessionKey": f"agent:main:{session}", "sessionId": "s1", "trigger": "user", **turn}
    result = evaluated(plugin, f"hooks.before_prompt_build({json.dumps(event)}, {json.dumps(context)})", **config)
    return result["prependContext"] if result else ""


@pytest.mark.parametrize("folder", [".", "memory"])
def test_a_users_prompt_gets_the_memory_of_its_session(url: str, linked: Path, folder: str) -> None:
    plugin, config = linked / folder, {"baseUrl": url}
    text = before_prompt(plugin, config=config)
    assert text.startswith('<recalld-context kind="memory">')
    assert ("crane is orange" in text, "vault" in text) == (True, True)
    assert before_prompt(plugin, config=config) == text, "OpenClaw keeps no text of an earlier prompt"
    group = before_prompt(plugin, "telegram:group:42", config=config)
    assert ("crane is orange" in group, "vault" in group) == (True, False)
    assert before_prompt(plugin, "slack:channel:general", config=config) == ""
    assert before_prompt(plugin, "boxed", config=config) == ""
    assert before_prompt(plugin, trigger="heartbeat", config=config) == ""
    assert before_prompt(plugin, inputProvenance={"kind": "inter_session"}, config=config) == ""


def test_a_prompt_goes_on_without_a_service_that_is_silent_away_or_gives_nothing(linked: Path, tmp_path: Path) -> None:
    with raw_server([HANG], [HANG]) as server:
        assert before_prompt(linked, config={"baseUrl": server.url, "timeoutMs": 10**9}) == ""
        assert (len(server.requests), server.gone.wait(10)) == (1, True)
        announce(tmp_path, server, secret="a-secret")
        assert before_prompt(linked, config={"home": str(tmp_path)}) == ""
        assert len(server.requests) == 1, "the service's entry tells that it gives none"
    assert before_prompt(linked, config={"baseUrl": server.url}) == ""


def test_a_program_on_the_port_of_a_home_gets_no_token(tmp_path: Path) -> None:
    (tmp_path / "run" / "tokens").mkdir(parents=True)
    (tmp_path / "run" / "tokens" / "main").write_text("hidden-token\n")
    with raw_server([answer(b'{"proof": "guessed"}'), answer(b"{}")]) as server:
        announce(tmp_path, server, secret="a-secret")
        search = 'supplement.search({ query: "crane", agentId: "main" }).catch((error) => error.message)'
        assert "another program" in evaluated(PLUGIN, search, home=str(tmp_path))
        assert [request.split()[0] for request in server.requests] == [b"GET"]
        assert b"hidden-token" not in b"".join(server.requests)


def test_the_tools_in_the_slot_are_those_of_the_service() -> None:
    assert (PLUGIN / "memory" / "tools.json").read_text("utf-8") == tools_json()
    owned = json.loads((PLUGIN / "memory" / "openclaw.plugin.json").read_text())["contracts"]["tools"]
    assert sorted(owned) == sorted(tool["name"] for tool in json.loads(tools_json()))
