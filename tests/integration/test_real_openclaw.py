"""The real OpenClaw: its memory_search and memory_get answer with passages of recalld, and its sessions are found."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import npm
from tests.chat_server import ChatServer
from tests.daemon import REPOSITORY, Daemon
from tests.embedding_server import EmbeddingServer
from tests.ports import free_port
from tests.transcript_files import message_line, transcript
from tests.waiting import wait_until

PLUGIN = REPOSITORY / "deploy" / "openclaw"
CHANNEL = "agent:main:slack:channel:general"
CRANE = "The harbour crane is called Basalt."

#: A plug-in that asks the memory as OpenClaw's voice calls do: for raw hits, then for those that the session may see.
PROBE = """
import { resolveRealtimeVoiceFastContextConsult } from "openclaw/plugin-sdk/realtime-voice";

const config = { enabled: true, timeoutMs: 60000, maxResults: 5, sources: ["memory", "sessions"] };
export default {
  id: "probe",
  register(api) {
    api.registerTool(({ config: cfg, agentId, sessionKey }) => ({
      name: "voice_probe",
      label: "Probe",
      description: "Asks as a voice call does",
      parameters: { type: "object", properties: { question: { type: "string" } } },
      async execute(_id, args) {
        const asked = { cfg, agentId, sessionKey, config, args, logger: api.logger };
        const { result } = await resolveRealtimeVoiceFastContextConsult(asked);
        return { content: [{ type: "text", text: result.text }], details: { text: result.text } };
      },
    }), { names: ["voice_probe"] });
  },
};
"""


class OpenClaw:
    """An OpenClaw of its own: home, state, workspace with one note, and a gateway on loopback."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.command = command
        self.sessions = folder / "state" / "agents" / "main" / "sessions"
        self.token = secrets.token_hex(16)
        self.state = folder / "state"
        self.said = folder / "gateway.out"
        workspace = folder / "claw"
        for path in (workspace, self.state, folder / "user"):
            path.mkdir(parents=True)
        (workspace / "MEMORY.md").write_text("The lighthouse is painted orange.\n", "utf-8")
        self.port = free_port()
        auth = {"mode": "token", "token": self.token}
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "user"),
            "OPENCLAW_STATE_DIR": str(self.state),
        }
        config = {
            "gateway": {"mode": "local", "bind": "loopback", "port": self.port, "auth": auth},
            "agents": {"entries": {"main": {"workspace": str(workspace)}}},
            "memory": {"search": {"provider": "none"}},
            "discovery": {"mdns": {"mode": "off"}},
            "update": {"checkOnStart": False},
            "models": {"catalogRefresh": {"enabled": False}},
        }
        (self.state / "openclaw.json").write_text(json.dumps(config))

    def run(self, *arguments: str) -> str:
        ended = subprocess.run(
            [*self.command, *arguments], env=self.environment, capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def say(self, text: str) -> str:
        """Have a conversation of one turn with a stand-in for the model; return the messages that the model got."""
        with ChatServer([lambda _: "Noted."] * 9) as model:
            row = {"id": "stand-in", "name": "Stand-in", "input": ["text"], "contextWindow": 120_000, "maxTokens": 8192}
            provider = {"baseUrl": model.base_url, "apiKey": "k", "api": "openai-completions", "models": [row]}
            self.run("config", "set", "--strict-json", "models.providers.local", json.dumps(provider))
            self.run("config", "set", "agents.defaults.model.primary", "local/stand-in")
            assert "Noted." in self.run("agent", "--local", "--agent", "main", "--message", text)
            return json.dumps([message["content"] for message in model.requests[-1]["messages"]], ensure_ascii=False)

    def install(self, plugin: Path, **config: object) -> None:
        """Install a plug-in as its README says, and configure it."""
        self.run("plugins", "install", "--link", "--force", "--accept-capabilities", str(plugin))
        name = json.loads((plugin / "openclaw.plugin.json").read_text())["id"]
        if config:
            self.run("config", "set", "--strict-json", f"plugins.entries.{name}.config", json.dumps(config))

    @contextmanager
    def gateway(self) -> Iterator[None]:
        with self.said.open("w") as output:
            command = [*self.command, "gateway", "run"]
            process = subprocess.Popen(command, env=self.environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: process.poll() is not None or self.ready(), timeout=300)
            assert process.poll() is None, self.said.read_text()
            yield
        finally:
            process.terminate()
            process.wait(timeout=120)

    def ready(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def call(self, tool: str, session: str = "main", /, **arguments: object) -> dict[str, Any]:
        """Return what a tool answers to this session, through the gateway."""
        response = httpx.post(
            f"http://127.0.0.1:{self.port}/tools/invoke",
            headers={"Authorization": f"Bearer {self.token}"},
            json={"tool": tool, "args": arguments, "sessionKey": session},
            timeout=120,
        )
        assert response.status_code == 200, response.text + self.said.read_text()
        details: dict[str, Any] = response.json()["result"]["details"]
        return details


class OwnAgents(Daemon):
    """A daemon whose settings name its agents."""

    def up_options(self) -> list[str]:
        return []


@pytest.fixture
def openclaw(tmp_path: Path, pytestconfig: pytest.Config) -> OpenClaw:
    return OpenClaw(npm.openclaw(pytestconfig, tmp_path), tmp_path)


@pytest.fixture
def recalld(tmp_path: Path) -> Iterator[Daemon]:
    """A recalld of two agents, each with a token; the first one has another name than OpenClaw's."""
    sessions, notes = tmp_path / "sessions", tmp_path / "research"
    for path in (sessions, notes / "memory", tmp_path / "other"):
        path.mkdir(parents=True)
    (notes / "MEMORY.md").write_text("Never push on Fridays.\n", "utf-8")
    (notes / "memory" / "2026-03-04.md").write_text(f"{CRANE}\n", "utf-8")
    (sessions / "talk.jsonl").write_bytes(message_line("plain", "user", "the numbat is shy"))
    config = (
        f'[[agents]]\nid = "research"\nworkspace = "{notes}"\nsources = ["memory", "sessions"]\n'
        f'sessions = ["{sessions}"]\nscope.rules = [{{ action = "deny", chat_type = "channel" }}]\n'
        f'[[agents]]\nid = "other"\nworkspace = "{tmp_path / "other"}"\n'
    )

    with OwnAgents(tmp_path / "home", notes, config=config) as daemon:
        wait_until(lambda: daemon.search("numbat", "--agent", "research", "--source", "sessions"), timeout=120)
        yield daemon


def paths(answer: dict[str, Any], corpus: str | None = None) -> list[str]:
    return [one["path"] for one in answer["results"] if one.get("corpus") == corpus]


@pytest.mark.long
def test_recalld_adds_passages_to_openclaws_memory_and_stopped_costs_nothing(
    openclaw: OpenClaw, recalld: Daemon
) -> None:
    openclaw.install(PLUGIN, home=str(recalld.home), agents={"main": "research"})
    with openclaw.gateway():
        both = openclaw.call("memory_search", query="orange lighthouse harbour crane", corpus="all")
        assert (paths(both, "memory"), paths(both, "recalld")[0]) == (["MEMORY.md"], "memory/2026-03-04.md")
        note = openclaw.call("memory_get", path="memory/2026-03-04.md", corpus="all")
        assert (note["status"], note["text"]) == ("ok", CRANE)

        assert "sessions/talk.jsonl" in paths(openclaw.call("memory_search", query="numbat", corpus="wiki"), "recalld")
        withheld = openclaw.call("memory_search", CHANNEL, query="numbat", corpus="wiki")
        assert (withheld["results"], "error" in withheld) == ([], False)
        assert openclaw.call("memory_get", CHANNEL, path="sessions/talk.jsonl", corpus="wiki")["text"] == ""

        recalld.stop()
        own = openclaw.call("memory_search", query="orange lighthouse", corpus="all")
        assert paths(own, "memory") == ["MEMORY.md"]
        assert "no recalld runs" in own["warning"]
        nothing = openclaw.call("memory_search", query="crane", corpus="wiki")
        assert (nothing["results"], "no recalld runs" in nothing["warning"]) == ([], True)
        read = openclaw.call("memory_get", path="memory/2026-03-04.md", corpus="wiki")
        assert (read["text"], "no recalld runs" in read["warning"]) == ("", True)


@pytest.mark.long
def test_in_the_memory_slot_recalld_answers_and_says_why_it_does_not(
    openclaw: OpenClaw, recalld: Daemon, tmp_path: Path
) -> None:
    probe = tmp_path / "probe"
    probe.mkdir()
    (probe / "index.js").write_text(PROBE)
    package = {"name": "probe", "version": "1.0.0", "type": "module", "openclaw": {"extensions": ["./index.js"]}}
    (probe / "package.json").write_text(json.dumps(package))
    manifest = {"id": "probe", "contracts": {"tools": ["voice_probe"]}, "configSchema": {"type": "object"}}
    (probe / "openclaw.plugin.json").write_text(json.dumps(manifest))
    openclaw.install(probe)
    openclaw.install(PLUGIN / "memory", home=str(recalld.home), agents={"main": "research"})
    assert json.loads((openclaw.state / "openclaw.json").read_text())["plugins"]["slots"] == {
        "memory": "recalld-memory"
    }
    status = json.loads(openclaw.run("status", "--json", "--all"))["memory"]
    assert (status["provider"], status["model"], status["dirty"]) == ("stub", "hashed-words-64", False)
    assert status["sourceCounts"] == [
        {"source": "memory", "files": 2, "chunks": 2},
        {"source": "sessions", "files": 1, "chunks": 1},
    ]
    assert (status["vector"]["available"], status["fts"]["available"]) == (True, True)
    with openclaw.gateway():
        found = openclaw.call("memory_search", query="harbour crane")
        assert (found["provider"], paths(found)[0]) == ("stub", "memory/2026-03-04.md")
        note = openclaw.call("memory_get", path="memory/2026-03-04.md", **{"from": 1, "lines": 1})
        assert (note["status"], note["text"]) == ("ok", CRANE)
        assert "minScore" in openclaw.call("memory_search", query="crane", minScore=7)["error"]

        assert paths(openclaw.call("memory_search", query="numbat", corpus="sessions")) == ["sessions/talk.jsonl"]
        withheld = openclaw.call("memory_search", CHANNEL, query="numbat")
        assert (withheld["results"], "error" in withheld) == ([], False)
        assert "numbat is shy" in openclaw.call("voice_probe", question="numbat")["text"]
        assert "numbat is shy" not in openclaw.call("voice_probe", CHANNEL, question="numbat")["text"]

        recalld.stop()
        nothing = openclaw.call("memory_search", query="crane")
        assert (nothing["results"], nothing["unavailable"]) == ([], True)
        assert "no recalld runs" in nothing["error"]
        read = openclaw.call("memory_get", path="memory/2026-03-04.md")
        assert (read["status"], read["text"]) == ("error", "")
        assert "no recalld runs" in read["error"]


@pytest.mark.long
@pytest.mark.parametrize("plugin", [PLUGIN, PLUGIN / "memory"], ids=["beside", "slot"])
def test_a_prompt_gets_memory_while_injection_is_on_and_goes_on_without(
    openclaw: OpenClaw, tmp_path: Path, plugin: Path
) -> None:
    injection = "context.injection = { enabled = true, min_score = 0, timeout_ms = 700 }\n"
    with followed(openclaw, tmp_path / "home", injection) as daemon:
        (daemon.workspace / "MEMORY.md").write_text(f"## Rules\n- Never push on Fridays\n\n## Harbour\n{CRANE}\n")
        openclaw.install(plugin, home=str(daemon.home))
        name = json.loads((plugin / "openclaw.plugin.json").read_text())["id"]
        openclaw.run("config", "set", f"plugins.entries.{name}.hooks.allowConversationAccess", "true")
        wait_until(lambda: daemon.search("harbour crane"))

        def is_given(question: str) -> bool:
            """Return True if the model got all that memory has for this prompt, and once."""
            given = re.findall(r'<recalld-context kind=\\"(\w+)\\">(.*?)</recalld-context>', openclaw.say(question))
            assert len(given) == len(dict(given)), "OpenClaw keeps no text of an earlier prompt"
            texts = {"standing": "", "memory": "", **dict(given)}
            assert "[sessions/" not in texts["memory"], "a session gets nothing of its own"
            return "Never push" in texts["standing"] and CRANE in texts["memory"]

        # A prompt that is not answered within a second goes without.
        wait_until(lambda: is_given("Has the harbour crane a zebra name?"), timeout=300)
        wait_until(lambda: daemon.search("zebra", "--source", "sessions"))
        wait_until(lambda: is_given("Which harbour crane name has the walrus?"), timeout=300)
        wait_until(lambda: daemon.search("walrus", "--source", "sessions"))
        passages = daemon.search("Never push on Fridays: Basalt", "--source", "sessions")
        assert not any("Fridays" in passage["snippet"] or "Basalt" in passage["snippet"] for passage in passages)

        daemon.stop()
        assert "recalld-context" not in openclaw.say("What is the harbour crane called?")
        daemon.config.write_text(daemon.config.read_text().replace("enabled = true", "enabled = false"))
        daemon.start()
        assert "recalld-context" not in openclaw.say("What is the harbour crane called?")


def followed(openclaw: OpenClaw, home: Path, config: str = "", *, provider: str = "stub") -> Daemon:
    """Return a recalld that indexes the sessions of an OpenClaw."""
    workspace = home.parent / "notes"
    workspace.mkdir()
    sessions = f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\nsessions = ["{openclaw.sessions}"]\n'
    return OwnAgents(home, workspace, provider=provider, config=config + sessions)


def is_indexed(daemon: Daemon, *, files: int) -> bool:
    """Return True if so many documents are on the disk, indexed, and none of them waits."""
    status = daemon.status()
    disk, index, pending = status["disk"], status["index"], status["queue"]["pending"]
    waiting = disk["missing"] + disk["stale"] + index["vectorsPending"] + pending
    return (disk["files"], index["files"], waiting) == (files, files, 0)


@pytest.mark.long
def test_a_conversation_in_openclaws_database_is_found_within_moments(openclaw: OpenClaw, tmp_path: Path) -> None:
    with followed(openclaw, tmp_path / "home") as daemon:
        words = "The otter in the harbour is called Ilsa."
        openclaw.say(words)
        assert not openclaw.sessions.exists()
        wait_until(lambda: daemon.search("otter harbour"))
        [passage] = daemon.search("otter harbour")
        assert words in passage["snippet"]
        openclaw.say("灯塔是橙色的。")
        wait_until(lambda: [hit["path"] for hit in daemon.search("橙色")] == [passage["path"]])


@pytest.mark.long
def test_a_home_that_followed_openclaw_to_its_database_lost_and_paid_nothing(
    openclaw: OpenClaw, tmp_path: Path, server: EmbeddingServer
) -> None:
    sessions = {}
    openclaw.sessions.mkdir(parents=True)
    for seed, key in enumerate(("agent:main:main", "agent:main:telegram:group:-100")):
        lines = transcript("openclaw", turns=6, seed=seed)
        session = json.loads(lines.partition(b"\n")[0])["id"]
        sessions[key] = {"sessionId": session, "updatedAt": 1_770_109_200_000}
        (openclaw.sessions / f"{session}.jsonl").write_bytes(lines)
    (openclaw.sessions / "sessions.json").write_text(json.dumps(sessions))
    remote = f'remote = {{ base_url = "{server.url}", api_key = "a-key" }}\n'
    with followed(openclaw, tmp_path / "home", remote, provider="openai") as daemon:
        wait_until(lambda: is_indexed(daemon, files=2), timeout=120)
        before = daemon.status()["index"]["sourceCounts"], server.inputs
        openclaw.run("doctor", "--fix", "--non-interactive", "--yes")
        assert not list(openclaw.sessions.glob("*.jsonl"))
        assert daemon.run("index").returncode == 0
        assert is_indexed(daemon, files=2)
        assert (daemon.status()["index"]["sourceCounts"], server.inputs) == before

        openclaw.say("The otter in the harbour is called Ilsa.")
        wait_until(lambda: daemon.search("otter harbour"))
        main = sessions["agent:main:main"]["sessionId"]
        assert daemon.search("otter harbour")[0]["path"] == f"sessions/{main}.jsonl"
        assert not server.paid_twice
