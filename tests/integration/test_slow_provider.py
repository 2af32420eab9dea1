"""One slow embedding endpoint keeps the searches of those who use it waiting, and nobody else's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import SecretStr

from schemas.conditions import ConditionCode
from schemas.settings import Settings
from tests.embedding_server import EmbeddingServer
from tests.serving import running, search
from tests.waiting import wait_until
from tests.written_index import with_agents, write_index

#: Seconds after which a search of the slow agent has to be answered, where that is waited for.
DEADLINE = 10.0

#: More than there are threads for requests to one provider, for stores, and for both together.
HANGING = 20


@pytest.fixture
def agents(settings: Settings, server: EmbeddingServer) -> Settings:
    """`slow` embeds with the server, `quick` with a model of its own, `plain` searches keywords only."""
    slow, quick, plain = with_agents(settings, "slow", "quick", "plain").agents
    remote = slow.remote.model_copy(update={"base_url": server.url, "api_key": SecretStr("sk-test")})
    limits = slow.limits.model_copy(update={"timeout_ms": int(DEADLINE * 1000)})
    slow = slow.model_copy(update={"provider": "openai", "remote": remote, "limits": limits})
    plain = plain.model_copy(update={"provider": "none"})
    trusting = settings.auth.model_copy(update={"trust_loopback": True})
    all_of_them = settings.model_copy(update={"agents": (slow, quick, plain), "auth": trusting})
    for agent in all_of_them.agents:
        write_index(all_of_them, agent.id).close()
    return all_of_them


def patient(agents: Settings) -> Settings:
    """The slow agent's searches wait for as long as somebody holds the endpoint."""
    slow, *others = agents.agents
    limits = slow.limits.model_copy(update={"timeout_ms": 110_000})
    return agents.model_copy(update={"agents": (slow.model_copy(update={"limits": limits}), *others)})


def test_others_are_answered_while_searches_wait_for_a_slow_endpoint(agents: Settings, server: EmbeddingServer):
    with running(patient(agents)) as client, ThreadPoolExecutor(HANGING) as threads:
        wait_until(lambda: search(client, "warm up", agent="slow")["mode"] == "hybrid")
        wait_until(lambda: search(client, "warm up", agent="quick")["mode"] == "hybrid")
        server.open.clear()
        hanging = [
            threads.submit(search, client, f"which card number {number}", agent="slow") for number in range(HANGING)
        ]
        wait_until(lambda: server.in_flight == 4)

        for number in range(10):
            for agent, mode in (("quick", "hybrid"), ("plain", "keyword")):
                answer = search(client, f"blue card number {number}", agent=agent)
                assert answer["results"][0]["snippet"].startswith(f"The password of {agent}")
                assert (answer["mode"], answer["degraded"]) == (mode, [])
        assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
        assert client.get("/v1/status", params={"agent": "slow"}).status_code == 200
        assert not any(one.done() for one in hanging)

        server.open.set()
        assert all(one.result(60)["mode"] == "hybrid" for one in hanging)


@pytest.mark.long
def test_everybody_is_answered_when_a_slow_endpoint_does_not_answer_in_time(agents: Settings, server: EmbeddingServer):
    with running(agents) as client, ThreadPoolExecutor(HANGING) as threads:
        wait_until(lambda: search(client, "warm up", agent="slow")["mode"] == "hybrid")
        server.open.clear()
        hanging = [
            threads.submit(search, client, f"which card number {number}", agent="slow") for number in range(HANGING)
        ]
        for one in hanging:
            answer = one.result(60)  # the endpoint itself would answer later than that
            assert answer["mode"] == "keyword"
            assert answer["fallback"] is True
            assert [answer["fallbackReason"]] == answer["degraded"]
            assert [one["code"] for one in answer["conditions"]] == [ConditionCode.QUERY_NOT_EMBEDDED]
            assert answer["results"][0]["snippet"].startswith("The password of")
        assert server.most_in_flight == 4
        server.open.set()


def test_a_model_that_loads_is_waited_for_though_no_search_does(agents: Settings, server: EmbeddingServer):
    slow, *others = agents.agents
    hasty = slow.model_copy(update={"limits": slow.limits.model_copy(update={"timeout_ms": 500})})
    with running(agents.model_copy(update={"agents": (hasty, *others)})) as client:
        wait_until(lambda: search(client, "warm up", agent="slow")["mode"] == "hybrid")
        server.open.clear()
        assert search(client, "which card", agent="slow")["mode"] == "keyword"
        server.open.set()
        wait_until(lambda: search(client, "which card", agent="slow")["mode"] == "hybrid")
    assert [request.inputs for request in server.log].count(("which card",)) == 1


def test_a_query_beyond_its_seconds_is_answered_by_keywords_with_the_reason(agents: Settings, server: EmbeddingServer):
    slow, *others = agents.agents
    remote = slow.remote.model_copy(update={"query_timeout_seconds": 0.3})
    settings = agents.model_copy(update={"agents": (slow.model_copy(update={"remote": remote}), *others)})
    server.open.clear()
    with running(patient(settings)) as client:
        reason = "did not answer in time (0.3 s): raise remote.query_timeout_seconds if it needs longer"
        wait_until(lambda: reason in str(search(client, "which card", agent="slow")["degraded"]))
        server.open.set()
