"""The promises of recalld in twenty short chapters, through the doors that its users have.

Read them in order. One `recalld up` runs for all of them; no chapter needs the one before it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess

import httpx

from tests.daemon import files_with
from tests.embedding_server import Failure
from tests.fundamentals.conftest import Memory
from tests.mcp_clients import calling, found, over_http
from tests.transcript_files import message_line, transcript
from tests.waiting import wait_until

GROUP = "agent:main:telegram:group:42"


# Notes


def test_01_a_saved_note_is_found_a_moment_later(memory: Memory) -> None:
    memory.save("memory/keys.md", "# Keys\n\nThe spare key is with Ms. Hallberg on the third floor.\n")
    memory.until_found("where is the spare key", "memory/keys.md")
    [first, *_] = memory.json("search", "where is the spare key")["results"]
    assert (first["path"], first["source"]) == ("memory/keys.md", "memory")


def test_02_a_changed_note_is_found_by_what_it_says_now(memory: Memory) -> None:
    memory.save("memory/dentist.md", "The dentist is on Tuesday.\n")
    memory.until_found("dentist Tuesday", "memory/dentist.md")
    memory.save("memory/dentist.md", "The dentist is on Wednesday.\n")
    wait_until(lambda: "Wednesday" in str(memory.ask("dentist Wednesday")["results"]))
    assert "Tuesday" not in str(memory.ask("dentist Tuesday"))


def test_03_a_deleted_note_is_forgotten(memory: Memory) -> None:
    note = memory.save("memory/parking.md", "The parking permit costs ninety crowns.\n")
    memory.until_found("parking permit", "memory/parking.md")
    note.unlink()
    wait_until(lambda: "memory/parking.md" not in memory.paths("parking permit"))


def test_04_a_chinese_question_finds_a_chinese_note(memory: Memory) -> None:
    memory.save("memory/heating.md", "# 暖气\n\n暖气阀门在厨房水槽下面。\n")
    memory.until_found("阀门在哪里", "memory/heating.md")


def test_05_a_result_names_its_lines_and_get_reads_them(memory: Memory) -> None:
    memory.save("memory/gateway.md", "# Gateway\n\n\nTicket FP-131: it listens on port 8443.\n\nThe end.\n")
    memory.until_found("FP-131", "memory/gateway.md")
    [first, *_] = memory.ask("FP-131")["results"]
    assert (first["startLine"], first["endLine"]) == (1, 6)
    assert memory.shell("get", "memory/gateway.md:4-4").stdout.strip() == "Ticket FP-131: it listens on port 8443."


# Transcripts


def test_06_what_was_said_to_an_agent_is_found(memory: Memory) -> None:
    (memory.sessions / "long.jsonl").write_bytes(
        transcript("openclaw", turns=30) + message_line("openclaw", "user", "The kayak is rented until Sunday.")
    )
    memory.until_found("kayak rented", "sessions/long.jsonl")


def test_07_a_hook_of_the_agents_program_makes_what_was_said_searchable_now(memory: Memory) -> None:
    talk = memory.sessions / "talk.jsonl"
    talk.write_bytes(message_line("claude-code", "user", "The piano lesson is on Monday."))
    memory.until_found("piano lesson", "sessions/talk.jsonl")
    with talk.open("ab") as file:
        file.write(message_line("claude-code", "user", "The violin recital moved to the church hall."))
    wait_until(lambda: memory.figures()["disk"]["growing"] == 1, what="one more line is not indexed at once")
    event = {"hook_event_name": "PostCompact", "session_id": "talk", "transcript_path": str(talk)}
    done = memory.run("hook", "claude-code", payload=json.dumps(event))
    assert (done.returncode, done.stdout) == (0, "")
    wait_until(lambda: memory.figures()["disk"]["growing"] == 0)
    assert memory.finds("violin recital", "sessions/talk.jsonl")


def test_08_old_transcripts_are_read_in_after_an_estimate(memory: Memory) -> None:
    old = memory.root / "archive"
    old.mkdir()
    (old / "2025.jsonl").write_bytes(
        transcript("codex", turns=5) + message_line("codex", "user", "The accordion was sold to Bram.")
    )
    before = memory.provider.inputs
    estimate = memory.json("backfill", str(old), "--dry-run")["estimate"]
    assert estimate["toEmbed"] > 0
    assert memory.provider.inputs == before
    memory.shell("backfill", str(old))
    assert memory.finds("accordion sold", str(old / "2025.jsonl"))


# Privacy


def test_09_a_secret_never_arrives_anywhere(memory: Memory) -> None:
    secret = "sk-proj-" + "9fK2mQ7xV4bN8sT1wZ6yH3cJ5dL0"
    memory.save("memory/deploy.md", f"# Deploy\n\nThe nightly build uses {secret} for the summaries.\n")
    memory.until_found("nightly build summaries", "memory/deploy.md")
    assert secret not in str(memory.ask("nightly build summaries"))
    assert secret not in memory.shell("get", "memory/deploy.md").stdout
    assert not any(secret in text for text in memory.provider.texts)
    assert files_with(memory.home, lambda content: secret.encode() in content) == []


def test_10_an_agent_sees_its_own_memory_only(memory: Memory) -> None:
    memory.save("memory/budget.md", "The zeppelin budget is four million.\n")
    memory.save("memory/topic.md", "A survey of airships.\n", agent="research")
    memory.until_found("zeppelin budget", "memory/budget.md")
    memory.until_found("survey of airships", "memory/topic.md", agent="research")
    assert memory.paths("zeppelin budget", agent="research") == []
    stranger = {"Authorization": f"Bearer {memory.token('research')}"}
    url = f"http://127.0.0.1:{memory.port()}/v1/search"
    refused = httpx.post(url, json={"query": "zeppelin", "agent": "main"}, headers=stranger, timeout=60)
    assert refused.status_code in {401, 403}
    assert "zeppelin" not in refused.text


def test_11_the_private_notes_stay_out_of_groups(memory: Memory) -> None:
    memory.save("MEMORY.md", "# Memory\n\nThe ring for Ines is in the piano.\n")
    memory.until_found("ring for Ines", "MEMORY.md")
    assert "MEMORY.md" not in memory.paths("ring for Ines", session=GROUP)
    with memory.client(session=GROUP) as client:
        read = client.get("MEMORY.md")
    assert (read["status"], read["text"]) == ("not_found", "")


# Doors


def test_12_agents_call_two_tools_by_the_model_context_protocol(memory: Memory) -> None:
    memory.save("memory/ferry.md", "The ferry leaves at six from the north pier.\n")
    memory.until_found("ferry north pier", "memory/ferry.md")
    url = f"http://127.0.0.1:{memory.port()}/mcp/main"
    token = {"Authorization": f"Bearer {memory.token('main')}"}
    answer = found(over_http(url, calling("memory_search", query="ferry north pier"), headers=token))
    assert answer["results"][0]["path"] == "memory/ferry.md"
    read = found(over_http(url, calling("memory_get", path="memory/ferry.md"), headers=token))
    assert read["text"] == "The ferry leaves at six from the north pier."


def test_13_a_tool_loop_of_ones_own_needs_the_client_only(memory: Memory) -> None:
    memory.save("memory/plumber.md", "The plumber is called Okonkwo.\n")
    memory.until_found("plumber called", "memory/plumber.md")
    with memory.client() as client:
        assert [tool["function"]["name"] for tool in client.tools()] == ["memory_search", "memory_get"]
        content = client.call_tool("memory_search", '{"query": "plumber called"}')
        assert json.loads(content)["results"][0]["path"] == "memory/plumber.md"
        assert "error" in json.loads(client.call_tool("memory_search", '{"question": "plumber"}'))


# Crashes and costs


def test_14_a_crash_loses_nothing(memory: Memory) -> None:
    [worker, *_] = memory.children("work")
    memory.save("memory/before.md", "Before the crash the osprey was ringed.\n")
    os.kill(worker, signal.SIGKILL)
    memory.save("memory/after.md", "After the crash the osprey was released.\n")
    memory.until_found("before osprey ringed", "memory/before.md")
    memory.until_found("after osprey released", "memory/after.md")


def test_15_the_same_text_is_paid_for_once(memory: Memory) -> None:
    text = "The recipe of the walnut bread needs two hours.\n"
    memory.save("memory/bread.md", text)
    memory.until_found("walnut bread", "memory/bread.md")
    memory.save("memory/copied.md", text, agent="research")
    memory.until_found("walnut bread", "memory/copied.md", agent="research")
    assert memory.provider.paid[text] == 1


def test_16_a_rebuild_keeps_answering_and_costs_nothing(memory: Memory) -> None:
    memory.save("memory/marmot.md", "The marmot kept its place.\n")
    memory.until_found("marmot kept", "memory/marmot.md")
    memory.until_settled()
    before, paid = memory.figures()["index"]["generation"], dict(memory.provider.paid)
    assert memory.json("rebuild", "--dry-run")["agents"][0]["toEmbed"] == 0
    with memory.started("--agent", "main", "rebuild", stdout=subprocess.DEVNULL) as rebuild:
        while rebuild.poll() is None:
            assert memory.finds("marmot kept", "memory/marmot.md")
    assert rebuild.returncode == 0
    assert memory.figures()["index"]["generation"] != before
    assert {text for text in memory.provider.paid if text not in paid and "\n" in text} == set()


# Trouble


def test_17_what_the_provider_refuses_is_listed_and_can_be_retried(memory: Memory) -> None:
    memory.provider.poison = "thundersnow"
    memory.save("memory/weather.md", "The thundersnow is expected on Friday.\n")
    wait_until(lambda: memory.figures()["deadLetters"])
    memory.shell("status", code=4)
    [letter] = memory.json("dead", "list")["deadLetters"]
    assert letter["path"] == "memory/weather.md"
    assert memory.finds("thundersnow Friday", "memory/weather.md"), "by its words"
    memory.provider.poison = None
    memory.shell("dead", "retry", "memory/weather.md")
    wait_until(lambda: not memory.figures()["deadLetters"])


def test_18_while_the_provider_is_down_words_are_searched_and_the_answer_says_so(memory: Memory) -> None:
    memory.save("memory/otter.md", "The otter family moved below the weir.\n")
    memory.until_found("otter family", "memory/otter.md")
    memory.provider.fail_next(Failure(status=503), times=1000)
    try:
        answer = memory.ask("where did the otter family move to")
        assert answer["mode"] == "keyword"
        assert answer["degraded"]
        assert answer["results"][0]["path"] == "memory/otter.md"
    finally:
        memory.provider.recover()
    wait_until(lambda: memory.ask("where does the otter family live")["mode"] == "hybrid")


def test_19_status_says_what_is_still_to_come(memory: Memory) -> None:
    memory.until_settled()
    memory.provider.open.clear()
    try:
        memory.save("memory/lynx.md", "The lynx crossed the road at the quarry.\n")
        wait_until(lambda: memory.figures()["index"]["vectorsPending"] == 1)
        index = memory.json("status")["agents"][0]["index"]
        assert index["vectorsReady"] == index["chunks"] - 1
        assert memory.finds("lynx quarry", "memory/lynx.md"), "by its words"
    finally:
        memory.provider.open.set()
    memory.until_settled()
    index = memory.json("status")["agents"][0]["index"]
    assert index["vectorsReady"] == index["chunks"]


def test_20_the_doctor_looks_at_everything_and_finds_nothing(memory: Memory) -> None:
    # Each of several processes that run these tests has a memory of its own.
    for agent in ("main", "research"):
        memory.save("memory/roof.md", "The roof was mended in May.\n", agent=agent)
    memory.until_found("roof mended", "memory/roof.md")
    memory.until_settled()
    answer = memory.json("doctor")
    assert answer["ok"]
    assert {"disk", "broker", "processes", "index"} <= {finding["check"] for finding in answer["findings"]}
