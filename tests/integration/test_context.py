"""The life cycle around a conversation, over HTTP, through the client and through hooks."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest

from memory.documents.note_facts import NoteFacts
from memory.transcripts.interpreter import Interpreter
from memory.transcripts.transcript_format import Message, tagged
from recalld.client import AsyncClient, Client
from recalld.context import Conversation
from schemas.conditions import ConditionCode
from schemas.settings import Settings
from tests.commanding import CommandLine
from tests.daemon import recalld
from tests.embedding_server import EmbeddingServer
from tests.serving import running, search
from tests.transcript_files import FORMATS, message_line
from tests.waiting import wait_until
from tests.working import Workers, asking
from tests.written_index import with_agent, write_index

MEMORY = (
    "# Memory\n\n## Rules\n- Never push on Fridays\n\n## Else\n- The vault is blue <!-- trigger: deploy -->\n"
    "- Use pnpm <!-- always --> <!-- project: github.com/acme/shop -->\n"
)


def settings_of(folder: Path, *, memory: str = MEMORY, **context: Any) -> Settings:
    workspace = folder / "workspace"
    (workspace / "memory").mkdir(parents=True)
    (workspace / "MEMORY.md").write_text(memory, "utf-8")
    (workspace / "AGENTS.md").write_text("Be kind. The token is ghp_0123456789abcdefghijABCDEFGHIJ012345.\n", "utf-8")
    (workspace / "memory" / "2026-03-04.md").write_text("The gateway listens on port 7171.\n", "utf-8")
    agent = {"id": "main", "workspace": workspace, "provider": "stub", "context": context}
    settings = Settings.model_validate({"home": folder / "home", "agents": [agent]})
    write_index(settings).close()
    return settings


@pytest.fixture(scope="module")
def injecting(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings that give prompts what memory knows about them."""
    injection = {"enabled": True, "timeout_ms": 10_000, "min_score": 0.0}
    return settings_of(tmp_path_factory.mktemp("context"), injection=injection)


@pytest.fixture(scope="module")
def client(injecting: Settings) -> Iterator[httpx.Client]:
    with running(injecting) as client:
        wait_until(lambda: search(client, "gateway")["mode"] == "hybrid")
        yield client


def prompt(client: httpx.Client, **request: Any) -> dict[str, Any]:
    response = client.post("/v1/context/prompt", json=request)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def sources(answer: dict[str, Any]) -> list[str]:
    return [block["source"].partition("#")[0] for block in answer["blocks"]]


def test_a_session_gets_its_rules_then_lines_and_passages_each_once(client: httpx.Client) -> None:
    begun = prompt(client, session="one", begins=True)
    assert "Never push" in begun["text"]
    assert "vault" not in begun["text"]
    asked = prompt(client, session="one", prompt="deploy: which port does the gateway have?")
    assert asked["text"].count("vault") == 1
    assert "Never push" not in asked["text"]
    assert "pnpm" not in asked["text"], "it is for another repository"
    assert "port 7171" in asked["text"]
    assert "[memory/2026-03-04.md#L1-L1]" in asked["text"]
    again = prompt(client, session="one", prompt="deploy: which port does the gateway have?")
    assert (again["text"], again["blocks"]) == ("", [])
    compacted = prompt(client, session="one", begins=True)
    assert compacted["text"] == begun["text"]


@pytest.mark.parametrize("key", ["agent:main:telegram:group:7", "agent:other:main"])
def test_a_session_in_which_others_listen_gets_no_long_term_memory(client: httpx.Client, key: str) -> None:
    answer = prompt(client, session=key, sessionKey=key, prompt="deploy: which port does the gateway have?")
    assert sources(answer) == ([] if "other" in key else ["memory/2026-03-04.md"])


def test_a_memory_that_is_not_asked_to_gives_nothing(tmp_path: Path) -> None:
    with running(settings_of(tmp_path)) as client:
        answer = prompt(client, session="one", prompt="which port does the gateway have?")
        assert (answer["text"], answer["disabled"]) == ("", True)
        assert hook({"hook_event_name": "UserPromptSubmit", "prompt": "gateway port"}, tmp_path / "home") == ""


def hook(payload: dict[str, Any], home: Path, *, program: str = "claude-code") -> str:
    environment = {"HOME": str(home.parent)}
    ran = recalld("hook", program, "--home", str(home), environment=environment, payload=json.dumps(payload))
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("program", ["claude-code", "codex"])
def test_a_hook_adds_context_to_a_prompt(injecting: Settings, program: str) -> None:
    begins = {"hook_event_name": "SessionStart", "source": "startup"}
    asks = {"hook_event_name": "UserPromptSubmit", "prompt": "Which port has the gateway?"}
    sessions = itertools.count()

    def added() -> list[str]:
        """Return the answers of a new session; a hook that is not answered within a second has none."""
        session = {"session_id": f"{program}-{next(sessions)}"}
        events: list[dict[str, Any]] = [begins, asks, asks, {"hook_event_name": "Stop"}]
        texts = [hook({**event, **session}, injecting.home, program=program) for event in events]
        return texts if all(texts[:2]) else []

    *answered, again, stop = wait_until(added)
    begun, asked = (json.loads(text)["hookSpecificOutput"] for text in answered)
    assert (begun["hookEventName"], asked["hookEventName"]) == ("SessionStart", "UserPromptSubmit")
    assert "Never push" in begun["additionalContext"]
    assert "port 7171" in asked["additionalContext"]
    assert "Never push" not in asked["additionalContext"]
    assert (again, stop) == ("", "")


@pytest.mark.usefixtures("client")
def test_a_hook_adds_lines_of_the_project_of_its_folder(injecting: Settings, tmp_path: Path) -> None:
    (tmp_path / "shop" / ".git").mkdir(parents=True)
    (tmp_path / "shop" / ".git" / "config").write_text('[remote "origin"]\n\turl = git@github.com:Acme/shop.git\n')
    begins = {"hook_event_name": "SessionStart", "source": "startup", "session_id": "project"}
    events = [{**begins, "cwd": str(tmp_path / name)} for name in ("shop", "other")]
    texts = [wait_until(lambda event=event: hook(event, injecting.home)) for event in events]  # type: ignore[misc]
    assert ["Use pnpm" in text for text in texts] == [True, False]


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_injected_is_not_read_again_from_the_transcript(client: httpx.Client, name: str) -> None:
    text = prompt(client, session=f"transcript {name}", prompt="deploy the gateway")["text"]
    assert text
    flush = tagged("Save what is worth remembering.", kind="flush")
    said = []
    interpreter = Interpreter(None)
    for words in (f"{text}\n\nPlease deploy", f"Thanks\n{text}", flush, text):
        reading = interpreter.read(message_line(name, "user", words).strip())
        said += [reading.text] if isinstance(reading, Message) else []
    assert said == ["Please deploy", "Thanks"]


def test_the_report_says_what_a_prompt_gets_and_what_is_indexed(client: httpx.Client) -> None:
    report = client.get("/v1/context", params={"texts": True}).json()
    files = {file["path"]: file for file in report["files"]}
    assert files["MEMORY.md"]["text"] == MEMORY.strip()
    assert files["MEMORY.md"]["characters"] == files["MEMORY.md"]["shown"] == len(MEMORY.strip())
    assert files["SOUL.md"]["problem"] == "missing"
    assert "ghp_" not in files["AGENTS.md"]["text"]
    assert [tool["name"] for tool in report["tools"]] == ["memory_search", "memory_get"]
    assert {document["path"]: document["chunks"] for document in report["indexed"]} == {
        "MEMORY.md": 1,
        "memory/2026-03-04.md": 1,
    }
    shared = client.get("/v1/context", params={"sessionKey": "agent:main:telegram:group:7"}).json()
    assert "MEMORY.md" not in [file["path"] for file in shared["files"]]
    assert shared["indexed"] == shared["standing"] == []
    with Client(url=str(client.base_url)) as ours:
        assert ours.context(texts=True) == report


def test_the_command_lists_files_tools_and_documents_and_prints_texts(commands: CommandLine, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text(MEMORY, "utf-8")
    (workspace / "AGENTS.md").write_text("words " * 5_000, "utf-8")
    commands.say("index")
    listed = [line.split() for line in commands.say("context", "list").splitlines()]
    assert ["AGENTS.md", "20,000", "characters", "5,000", "tokens", "cut,", "29,999", "in", "all"] in listed
    assert ["MEMORY.md", str(len(MEMORY.strip())), "characters", "40", "tokens"] in listed
    assert ["MEMORY.md", str(len(MEMORY.encode())), "bytes", "40", "tokens", "1", "chunk"] in listed
    assert {"memory_search", "memory_get"} <= {line[0] for line in listed if line}
    assert "Not there: SOUL.md" in commands.say("context", "list")
    assert f"\n# MEMORY.md\n{MEMORY.strip()}\n" in commands.say("context", "detail")


def test_the_client_plans_flushes_and_prunes(client: httpx.Client) -> None:

    async def asked() -> None:
        async with AsyncClient(url=str(client.base_url)) as ours:
            plan = await ours.flush_plan({"windowTokens": 100_000, "tokens": 90_000})
            assert plan["due"]
            assert plan["path"].startswith("memory/2")
            later = await ours.flush_plan({"windowTokens": 100_000, "tokens": 90_000, "flushedAt": plan["cycle"]})
            assert (later["due"], later["skip"]) == (False, "flushed_in_this_cycle")
            messages = [{"role": "user", "content": "hello"}]
            assert (await ours.prune(messages, touched_at=1.0))["messages"] == messages
            assert "Never push" in (await ours.before_prompt(session="client", begins=True))["text"]

    asyncio.run(asked())


def test_pruning_keeps_its_decisions_from_call_to_call(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, pruning={"mode": "cache-ttl", "keep_last_assistants": 0, "soft_trim_ratio": 0.0})
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "read", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "x" * 9_000},
    ]
    with running(settings) as service, Client(url=str(service.base_url)) as client:
        first = client.prune(messages, touched_at=1.0)
        assert first["charactersAfter"] < 4_000 < 9_000 < first["charactersBefore"]
        conversation = Conversation(client, "s1", window_tokens=100_000)
        assert conversation.prune(messages) == messages, "the provider's cache may be warm"
        conversation.touched_at = 1.0
        assert conversation.prune(messages) == first["messages"]
        assert conversation.touched_at > 1.0
        assert conversation.prune(messages) == first["messages"], "the decisions are repeated"


def test_a_conversation_repeats_nothing_until_it_is_compacted(client: httpx.Client) -> None:
    with Client(url=str(client.base_url)) as memory:
        conversation = Conversation(memory, "program", window_tokens=100_000, projects=["github.com/acme/shop"])
        begun = conversation.begin()
        assert "Use pnpm" in begun
        question = "deploy: which port does the gateway have?"
        assert "port 7171" in conversation.before_prompt(question)
        assert conversation.before_prompt(question) == ""
        assert not conversation.flush_plan(10_000)["due"]
        plan = conversation.flush_plan(90_000)
        assert plan["due"]
        conversation.flushed(plan)
        assert conversation.flush_plan(90_000)["skip"] == "flushed_in_this_cycle"
        assert conversation.compact() == begun
        assert conversation.flush_plan(90_000)["due"]


def test_a_program_that_keeps_no_text_gets_it_with_each_prompt(client: httpx.Client) -> None:
    question = {"session": "forgetful", "prompt": "which port does the gateway have?", "repeats": True}
    first, second = prompt(client, **question), prompt(client, **question)
    assert ("Never push" in first["text"], "port 7171" in first["text"]) == (True, True)
    assert second["text"] == first["text"]


@pytest.mark.parametrize("project", ["https://github.com/acme/shop.git", "git@GitHub.com:acme/shop"])
def test_a_request_names_a_project_by_any_address(client: httpx.Client, project: str) -> None:
    assert "pnpm" in prompt(client, projects=["/srv/shop", project])["text"]


SHOP = "<!-- project: github.com/acme/shop -->"
LINE = "- The heron of the shop sleeps at the river"
OTHER = "- The heron of the river sleeps, too"

#: The file that is indexed, and the file after an edit that the index has not seen.
EDITS = {
    "no edit": (f"{LINE} {SHOP}\n{OTHER}\n", f"{LINE} {SHOP}\n{OTHER}\n"),
    "its place": (f"{LINE} {SHOP}\n{OTHER}\n", f"\n\n{OTHER}\n\n{LINE} {SHOP}\n"),
    "a new mark": (f"{LINE}\n{OTHER}\n", f"{LINE} {SHOP}\n{OTHER}\n"),
}


@pytest.mark.parametrize(("indexed", "now"), EDITS.values(), ids=EDITS)
def test_a_line_of_a_project_stays_hidden_before_its_edit_is_indexed(tmp_path: Path, indexed: str, now: str) -> None:
    injection = {"enabled": True, "min_score": 0.0, "timeout_ms": 10_000}
    with running(settings_of(tmp_path, memory=indexed, injection=injection)) as client:
        wait_until(lambda: search(client, "heron")["mode"] == "hybrid")
        (tmp_path / "workspace" / "MEMORY.md").write_text(now, "utf-8")
        text = prompt(client, prompt="where does the heron sleep", projects=["github.com/acme/bank"])["text"]
    assert ("of the shop" in text, "of the river" in text) == (False, True)


def test_curated_files_are_read_once_a_revision_and_an_edit_is_seen_at_once(tmp_path: Path) -> None:
    lines = "".join(f"- note {number} password = correct{number}horse <!-- always -->\n" for number in range(20_000))
    file = tmp_path / "workspace" / "MEMORY.md"
    with running(settings_of(tmp_path, memory="", injection={"enabled": True})) as client:

        def seconds(text: str) -> float:
            begun = time.process_time()
            assert text in prompt(client)["text"]
            return time.process_time() - begun

        file.write_text(f"- The first rule <!-- always -->\n{lines}", "utf-8")
        first, again = seconds("The first rule"), min(seconds("The first rule") for _ in range(3))
        file.write_text(f"- The other rule <!-- always -->\n{lines}", "utf-8")
        edited = seconds("The other rule")
    assert again < min(first, edited) / 3


def test_a_pattern_that_costs_too_much_is_tried_once_a_revision(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, injection={"enabled": True})
    (tmp_path / "workspace" / "MEMORY.md").write_text(f"- {'a' * 60}! <!-- always -->\n", "utf-8")
    times = []
    with running(with_agent(settings, redaction={"patterns": ["(?:a|aa)+$"]})) as client:
        for _ in range(4):
            begun = time.process_time()
            assert prompt(client)["text"] == ""
            times.append(time.process_time() - begun)
    assert min(times[1:]) < times[0] / 3


@pytest.mark.parametrize("enabled", [True, False])
def test_status_names_project_marks_that_cannot_be_read(tmp_path: Path, enabled: bool) -> None:
    with running(settings_of(tmp_path, injection={"enabled": enabled})) as client:
        before = client.get("/v1/status").json()["agents"][0]
        marks = f"# Me\n- Tea {SHOP}\n- Ink <!-- project: -->\n- Oil <!-- Projects: a/b -->\n"
        (tmp_path / "workspace" / "USER.md").write_text(marks, "utf-8")
        after = wait_until(lambda: [a for a in client.get("/v1/status").json()["agents"] if a["disk"]["missing"]])[0]
    assert before.get("advice", []) == []
    advice = [(one["code"], one["subject"], one["params"]) for one in after.get("advice", [])]
    expected = (ConditionCode.PROJECT_MARK_UNREADABLE, "USER.md", {"marks": 2, "line": 3})
    assert advice == [expected] * enabled


@pytest.mark.usefixtures("broker_server")
def test_a_session_finds_its_own_transcript_only_once_it_was_compacted(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    names = ("one", "two")
    for name in names:
        (folder / f"{name}.jsonl").write_bytes(message_line("plain", "user", f"The ocelot of session {name} sleeps."))
    context = {"injection": {"enabled": True, "timeout_ms": 10_000, "min_score": 0.0}}
    settings = with_agent(settings, sessions=[str(folder)], context=context)
    with Workers(settings) as workers:
        workers.index("MEMORY.md", "A new index asks for all other documents.\n")
        wait_until(lambda: workers.finds("ocelot") and workers.complete() and workers.counts().files == 1 + len(names))
    found = []
    with running(settings) as client:
        wait_until(lambda: search(client, "ocelot")["mode"] == "hybrid")
        for begins in (True, False, True):
            answer = prompt(client, session="one", begins=begins, prompt="where is the ocelot")
            found.append([name for name in names if f"session {name} sleeps" in answer["text"]])
    assert found == [["two"], [], ["one", "two"]]


NOTE = "memory/2026-03-04-0930.md"


@pytest.fixture
def conversations(settings: Settings, tmp_path: Path) -> Settings:
    """An index of one conversation (transcript, archive, note), 14 others and a MEMORY.md that knows better."""
    folder, workspace = tmp_path / "sessions", settings.agents[0].workspace
    folder.mkdir()
    said = "The gateway of the house listens on port 18789"
    names = ["one.jsonl", "one.jsonl.reset.2026-03-04T10-00-00.000Z", *(f"talk-{n}.jsonl" for n in range(14))]
    for name in names:
        (folder / name).write_bytes(message_line("plain", "user", f"{said}, says {name}."))
    facts = NoteFacts("one", "claude-code", "sessions/one.jsonl")
    (workspace / "memory").mkdir(exist_ok=True)
    note = f"# Session\n\n{facts}\n\n{said}. Which port has the gateway of the house? {said}.\n"
    (workspace / NOTE).write_text(note, "utf-8")
    (workspace / "memory" / "weather.md").write_text("It rains in the garden, and the house is wet.\n", "utf-8")
    injection = {"enabled": True, "timeout_ms": 10_000}
    settings = with_agent(settings, sessions=[str(folder)], context={"injection": injection})
    truth = "The gateway: port 20001.\n" + "".join(f"- Fact {n} of many others, such as herons.\n" for n in range(40))
    with Workers(settings) as workers:
        workers.index("MEMORY.md", truth)
        wait_until(lambda: workers.finds("weather") and workers.complete() and workers.counts().files == 3 + len(names))
    # Vectors of the stub mean nothing.
    return with_agent(settings, provider="none")


@pytest.mark.usefixtures("broker_server")
def test_earlier_conversations_bring_one_passage_each_beside_the_truth_of_memory_md(conversations: Settings) -> None:
    question = "which port has the gateway of the house"
    with running(conversations) as client:
        top = [result["path"] for result in search(client, question, maxResults=12)["results"]]
        assert (top[0], "MEMORY.md" in top) == (NOTE, False), "the truth ranks behind"
        new, own = (sources(prompt(client, session=name, prompt=question)) for name in ("new", "one"))
        unrelated = prompt(client, session="else", prompt="write a quick sort in Rust, which the house needs")
        prompt(client, session="one", begins=True)
        compacted = sources(prompt(client, session="one", prompt=question))
    assert [new[0], own[0], compacted[0]] == ["MEMORY.md"] * 3
    of_one = ("sessions/one.jsonl", NOTE)
    assert [sum(path.startswith(of_one) for path in paths) for paths in (new, own, compacted)] == [1, 0, 1]
    assert unrelated["blocks"] == []


def test_rules_beyond_their_budget_are_found_as_passages(tmp_path: Path) -> None:
    memory = "## Rules\n- Never push on Fridays\n- The gateway is restarted by Ada only\n"
    injection = {"enabled": True, "standing_max_chars": 40, "min_score": 0.0, "timeout_ms": 10_000}
    with running(settings_of(tmp_path, memory=memory, injection=injection)) as client:
        wait_until(lambda: search(client, "gateway")["mode"] == "hybrid")
        begun = prompt(client, session="one", begins=True)
        asked = prompt(client, session="one", prompt="the gateway is restarted by")
    assert ("Ada" in begun["text"], "Ada" in asked["text"]) == (False, True)


@pytest.mark.usefixtures("broker_server")
def test_a_line_is_found_by_its_meaning_and_nothing_is_paid_twice(settings: Settings, server: EmbeddingServer) -> None:
    context = {"injection": {"enabled": True, "timeout_ms": 10_000, "min_score": 1.0}}
    settings = with_agent(asking(settings, server.url), context=context)
    line = "- The vault stands in room seven <!-- trigger: release the server, production deploy -->"
    with Workers(settings) as workers:
        workers.index("MEMORY.md", f"# Memory\n\nMany other words are here, too.\n\n{line}\n")
    for _ in range(2):
        with running(settings) as client:
            wait_until(lambda: search(client, "weather")["mode"] == "hybrid")
            near = prompt(client, prompt="release server production deploy the vault stands in room")
            far = prompt(client, prompt="many other words about the weather")
        assert near["blocks"][0]["source"] == "MEMORY.md#L5-L5"
        assert "MEMORY.md#L5-L5" not in [block["source"] for block in far["blocks"]]
    # The document and the line once, and each of three questions once a service.
    assert server.inputs == 2 + 2 * 3


def days(zone: str) -> list[str]:
    """Return the notes of yesterday, today and tomorrow in a time zone, and of the day before."""
    today = datetime.now(ZoneInfo(zone)).date()
    return [f"memory/{today + timedelta(day)}.md" for day in (-1, 0, 1, -2)]


def append(folder: Path, names: list[str], line: str) -> None:
    for name in names:
        with (folder / "workspace" / name).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


# Their days differ at any time.
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_a_private_session_begins_with_the_notes_of_today_and_yesterday_once(tmp_path: Path, zone: str) -> None:
    injection = {"enabled": True, "timeout_ms": 10_000, "min_score": 0.0, "daily_notes": True}
    injection["daily_note_max_chars"] = 300
    settings = settings_of(tmp_path, injection=injection, timezone=zone)
    names = days(zone)
    for name in names:
        (tmp_path / "workspace" / name).write_text(f"The otter of {name} sleeps.\n", "utf-8")
    write_index(settings).close()
    append(tmp_path, names, "The token is ghp_0123456789abcdefghijABCDEFGHIJ012345.")
    # Midnight may come meanwhile.
    expected = [[names[1], names[0]], [names[2], names[1]]]
    group = "agent:main:telegram:group:7"
    with running(settings) as client:
        wait_until(lambda: search(client, "otter")["mode"] == "hybrid")
        begun = prompt(client, session="one", begins=True)
        notes = [source for source in sources(begun) if source != "MEMORY.md"]
        assert notes in expected
        assert (f"The otter of {notes[0]} sleeps" in begun["text"], "ghp_" in begun["text"]) == (True, False)
        append(tmp_path, names, "- a new line")
        asked = prompt(client, session="one", prompt="where does the otter sleep?")
        assert sources(asked), "other notes are found"
        assert not set(notes) & set(sources(asked))
        compacted = prompt(client, session="one", begins=True)
        assert compacted["text"].count("- a new line") == 2
        # Without an announcement a session begins with its first prompt.
        assert prompt(client, session="two", prompt="continue")["text"].count("- a new line") == 2
        assert prompt(client, session=group, sessionKey=group, begins=True)["text"] == ""
        subagent = "agent:main:subagent:3f"
        assert prompt(client, session=subagent, sessionKey=subagent, begins=True)["text"] == ""
        report = client.get("/v1/context").json()["dailyNotes"]
        assert [block["source"].partition("#")[0] for block in report] in expected
        assert client.get("/v1/context", params={"sessionKey": group}).json()["dailyNotes"] == []
        listed = recalld("context", "list", "--home", str(settings.home), environment={"HOME": str(tmp_path)})
        rows = [line.split("#L1-L3 ")[0].strip() for line in listed.stdout.partition("Daily notes: ")[2].splitlines()]
        assert rows[1:3] in expected, listed.stderr
        append(tmp_path, names, "- old" * 60 + "\n- the newest")
        text = prompt(client, session="three", begins=True)["text"]
        cuts = [text.count(words) for words in ("is cut here: ", "- the newest", "The otter")]
        assert cuts == [2, 2, 0]


def test_a_flush_has_the_texts_of_the_settings(tmp_path: Path) -> None:
    flush = {"prompt": "Sichere alles.", "system_prompt": "Nur memory/YYYY-MM-DD.md."}
    with running(settings_of(tmp_path, flush=flush)) as client:
        plan = client.post("/v1/context/flush", json={"windowTokens": 9_000, "tokens": 9_000}).json()
    assert [word in plan["prompt"] for word in ("Sichere alles.", plan["path"], plan["silentToken"])] == [True] * 3
    assert (f"Nur {plan['path']}." in plan["systemPrompt"], plan["silentToken"] in plan["systemPrompt"]) == (True, True)
