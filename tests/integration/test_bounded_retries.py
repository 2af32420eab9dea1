"""A text that the endpoint fails on for ever: bounded, found among its neighbours, listed, and retried when asked."""

from __future__ import annotations

from memory.embedding.sender import TRIALS
from schemas.settings import Settings
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until
from tests.working import Workers, key
from workers.queue.private_server import BrokerServer


def test_a_text_that_breaks_the_endpoint_becomes_a_dead_letter_and_its_neighbours_are_embedded(
    settings: Settings, broker_server: BrokerServer
) -> None:
    with EmbeddingServer(breaking="crocodile") as server:
        remote = {"provider": "openai", "remote": {"base_url": server.url, "api_key": "a-key"}}
        agent = {"id": "main", "workspace": settings.agents[0].workspace, **remote}
        with Workers(Settings.model_validate({"home": settings.home, "agents": [agent], **remote})) as workers:
            paths = [f"memory/{number}.md" for number in range(12)]
            for path in paths:
                workers.write(path, f"{'A crocodile' if path == paths[5] else 'A heron'} is in {path}.")
            workers.mark(*paths)
            wait_until(lambda: workers.counts().vectors_refused == 1)
            wait_until(lambda: workers.settled() and workers.counts().vectors_ready == 11)
            assert workers.finds("crocodile"), "keywords find it all the same"
            with workers.reading("main") as reader:
                assert reader is not None
                (letter,) = reader.dead_letters()
            assert letter.key == key(paths[5])
            assert f"{TRIALS} times while it answered others" in letter.reason
            assert "HTTP 500" in letter.reason
            wait_until(lambda: not workers.conditions())
            asked = server.requests
            workers.write(paths[0], "A heron has moved.")
            workers.mark(paths[0])
            wait_until(lambda: workers.settled() and workers.counts().vectors_ready == 11)
            assert server.requests == asked + 1, "what was given up is not asked again by itself"
            server.breaking = None
            workers.write(paths[5], "A crocodile is in the river now.")
            workers.mark(paths[5])
            wait_until(workers.complete)
            with workers.reading("main") as reader:
                assert reader is not None
                assert not reader.dead_letters()
