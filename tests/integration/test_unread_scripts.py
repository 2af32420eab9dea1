"""A memory in a script that the bundled model does not read: by the workers, over HTTP and by commands."""

from __future__ import annotations

import pytest

from schemas.conditions import ConditionCode
from schemas.settings import Settings
from tests.commanding import CommandLine
from tests.embedding_server import EmbeddingServer
from tests.serving import running, search
from tests.waiting import wait_until
from tests.working import Workers
from tests.written_index import with_agent


@pytest.mark.usefixtures("broker_server")
def test_a_greek_note_is_found_by_words_and_embedded_by_the_next_model(
    settings: Settings, commands: CommandLine, server: EmbeddingServer
) -> None:
    settings = with_agent(settings, provider="local")
    with Workers(settings) as workers:
        workers.note("memory/el.md", "Ο διακομιστής δοκιμών λέγεται Βασάλτης και ξεκινά κάθε πρωί στις έξι.")
        workers.note("memory/en.md", "The test server is called Basalt and starts at six.")
        wait_until(lambda: workers.settled() and workers.counts().chunks == 2 and not workers.counts().vectors_pending)
        [usage] = wait_until(lambda: workers.health.usage("main"))
        assert (workers.counts().vectors_ready, usage.inputs) == (1, 1)
        with running(settings, workers.health) as client:
            answer = search(client, "πώς λέγεται ο διακομιστής")
            assert [result["path"] for result in answer["results"]] == ["memory/el.md"]
            assert (answer["mode"], answer["degraded"], answer["pending"]["vectors"]) == ("keyword", [], 0)
            [agent] = client.get("/v1/status").json()["agents"]
            assert (agent["ok"], agent["degraded"], agent["index"]["unreadScripts"]) == (True, [], {"Greek": 1})

    commands.set("RECALLD_PROVIDER", "local")
    assert "nothing to embed" in commands.say("rebuild", "--dry-run")
    status = commands.agent("status")
    assert (status["ok"], [advice["code"] for advice in status["advice"]]) == (True, [ConditionCode.SCRIPTS_UNREAD])
    assert commands.say("status").count("Greek") == commands.say("doctor").count("Greek") == 1
    commands.set("RECALLD_PROVIDER", "openai")
    assert commands.agent("index")["vectorsReady"] == server.inputs == 2
