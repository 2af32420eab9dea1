"""OpenClaw's memorySearch in recalld's words, without its secrets."""

from __future__ import annotations

from typing import Any

import pytest

from recalld.discovering.checking import accepted, dotted
from recalld.discovering.memory_search import translate
from recalld.settings_keys import agent_keys, top_level_keys


def translated(tree: dict[str, Any], *, agents_own: bool = False) -> tuple[dict[str, Any], list[str]]:
    done = translate(tree, agents_own=agents_own)
    return done.values, done.remarks


FULL = {
    "enabled": True,
    "provider": "openai",
    "fallback": "gemini",
    "model": "text-embedding-3-large",
    "outputDimensionality": 512,
    "sources": ["memory", "sessions"],
    "experimental": {"sessionMemory": True},
    "extraPaths": ["~/wiki", {"path": "/srv/docs"}, "~/wiki"],
    "remote": {
        "baseUrl": "http://127.0.0.1:9000/v1",
        "nonBatchConcurrency": 3,
        "batch": {"enabled": True, "wait": False, "concurrency": 3, "pollIntervalMs": 5000, "timeoutMinutes": 90},
    },
    "local": {"modelPath": "~/models/m.gguf", "modelCacheDir": "~/models"},
    "store": {"driver": "sqlite", "path": "~/x", "vector": {"enabled": False, "extensionPath": "/lib/vec0.so"}},
    "chunking": {"tokens": 600, "overlap": 100},
    "sync": {
        "onSessionStart": False,
        "onSearch": False,
        "watch": False,
        "watchDebounceMs": 900,
        "intervalMinutes": 5,
        "sessions": {"deltaBytes": 1, "deltaMessages": 2, "postCompactionForce": False},
    },
    "query": {
        "maxResults": 9,
        "minScore": 0.2,
        "hybrid": {
            "enabled": False,
            "vectorWeight": 0.7,
            "textWeight": 0.3,
            "candidateMultiplier": 2,
            "mmr": {"enabled": True, "lambda": 0.4},
            "temporalDecay": {"enabled": True, "halfLifeDays": 7},
        },
    },
    "cache": {"enabled": False, "maxEntries": 10},
}


def test_everything_that_has_a_counterpart_is_taken_over() -> None:
    values, remarks = translated(FULL)
    assert remarks == []
    assert values == {
        "enabled": True,
        "provider": "openai",
        "fallback": "gemini",
        "model": "text-embedding-3-large",
        "output_dimensionality": 512,
        "sources": ["memory", "sessions"],
        "extra_paths": ["~/wiki", "/srv/docs"],
        "remote.base_url": "http://127.0.0.1:9000/v1",
        "remote.concurrency": 3,
        "remote.batch.enabled": True,
        "remote.batch.wait": False,
        "remote.batch.concurrency": 3,
        "remote.batch.poll_interval_ms": 5000,
        "remote.batch.timeout_minutes": 90,
        "local.model_path": "~/models/m.gguf",
        "local.model_cache_dir": "~/models",
        "store.vector.enabled": False,
        "store.vector.extension_path": "/lib/vec0.so",
        "chunking.tokens": 600,
        "chunking.overlap": 100,
        "sync.on_session_start": False,
        "sync.on_search": False,
        "sync.watch": False,
        "sync.watch_debounce_ms": 900,
        "sync.interval_minutes": 5,
        "sync.sessions.delta_bytes": 1,
        "sync.sessions.delta_messages": 2,
        "sync.sessions.post_compaction_force": False,
        "query.max_results": 9,
        "query.min_score": 0.2,
        "query.hybrid.enabled": False,
        "query.hybrid.vector_weight": 0.7,
        "query.hybrid.text_weight": 0.3,
        "query.hybrid.candidate_multiplier": 2,
        "query.hybrid.mmr.enabled": True,
        "query.hybrid.mmr.lambda": 0.4,
        "query.hybrid.temporal_decay.enabled": True,
        "query.hybrid.temporal_decay.half_life_days": 7,
        "cache.enabled": False,
        "cache.max_entries": 10,
    }
    assert dotted(accepted(values, remarks)) == values, "recalld itself accepts all of it"
    assert remarks == []
    own, remarks = translated(FULL, agents_own=True)
    assert set(own) <= set(agent_keys()) <= set(agent_keys()) | set(top_level_keys())
    assert {remark.split()[0] for remark in remarks} == {
        "store.vector.enabled",
        "store.vector.extension_path",
        "cache.enabled",
        "cache.max_entries",
    }


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"remote": {"apiKey": "sk-secret"}, "provider": "openai"}, "set OPENAI_API_KEY"),
        ({"remote": {"apiKey": "${MY_KEY}"}, "provider": "gemini"}, "the variable MY_KEY); set GEMINI_API_KEY"),
        (
            {"remote": {"apiKey": {"source": "env", "id": "MY_KEY"}}},
            "the variable MY_KEY); set RECALLD_REMOTE__API_KEY",
        ),
        (
            {"remote": {"apiKey": "sk-secret", "baseUrl": "http://h/v1"}, "provider": "openai"},
            "set RECALLD_REMOTE__API_KEY",
        ),
        ({"remote": {"headers": {"X-Token": "sk-secret"}}}, "X-Token"),
        ({"remote": {"headers": "sk-secret"}}, "headers"),
        ({"remote": {"baseUrl": "https://user:sk-secret@host/v1"}}, "a key may be in it"),
        ({"remote": {"baseUrl": "https://host/v1?key=sk-secret"}}, "a key may be in it"),
        ({"remote": {"baseUrl": "${URL}"}}, "the variable URL"),
        ({"remote": {"baseUrl": "sk-secret"}}, "remote.baseUrl"),
        ({"local": {"modelPath": "hf:org/repo/sk-secret.gguf"}}, "bundled model"),
        ({"multimodal": {"enabled": True}}, "multimodal.enabled has no counterpart"),
        ({"fallback": "auto"}, "fallback auto"),
        ({"sources": "sk-secret"}, "sources"),
        ({"extraPaths": [3]}, "extraPaths"),
        ({"extraPaths": [{"path": "~/wiki", "pattern": "*.txt"}]}, "pattern"),
        ({"model": "${MODEL}"}, "model"),
        ({"query": {"maxResults": ["sk-secret"]}}, "query.maxResults"),
        ({"query": {"hybrid": {"vectorWeight": 0.5}}}, "fusion"),
    ],
)
def test_what_is_not_taken_over_is_said_without_what_it_is(tree: dict[str, Any], words: str) -> None:
    values, remarks = translated(tree)
    assert any(words in remark for remark in remarks)
    assert "sk-secret" not in str(values) + str(remarks)


def test_a_provider_that_recalld_does_not_know_takes_its_model_with_it() -> None:
    values, remarks = translated({"provider": "bedrock", "model": "titan", "query": {"maxResults": 3}})
    assert values == {"query.max_results": 3}
    assert any("bedrock" in remark for remark in remarks)


def test_servers_that_speak_openais_api_are_openai_with_an_address() -> None:
    assert translated({"provider": "lmstudio"})[0] == {
        "provider": "openai",
        "remote.base_url": "http://127.0.0.1:1234/v1",
    }
    assert translated({"provider": "openai-compatible", "remote": {"baseUrl": "http://h/v1"}})[0] == {
        "provider": "openai",
        "remote.base_url": "http://h/v1",
    }


@pytest.mark.parametrize(
    "tree",
    [
        {"sources": ["memory", "sessions"], "experimental": {"sessionMemory": False}},
        {"experimental": {"sessionMemory": False}, "sources": ["memory", "sessions"]},
    ],
)
def test_sessions_are_no_source_where_their_experiment_is_off(tree: dict[str, Any]) -> None:
    assert translated(tree)[0]["sources"] == ["memory"]


def test_values_that_recalld_refuses_are_left_out_and_said() -> None:
    remarks: list[str] = []
    kept = accepted(
        {
            "chunking.tokens": 10,
            "query.max_results": True,
            "query.min_score": float("nan"),
            "sync.watch": 1,
            "sync.watch_debounce_ms": "900",
            "cache.max_entries": 5e4,
            "model": 7,
            "query.hybrid.mmr.lambda": 0.5,
        },
        remarks,
    )
    assert kept == {"cache": {"max_entries": 50_000}, "query": {"hybrid": {"mmr": {"lambda": 0.5}}}}
    assert len(remarks) == 6


def test_values_that_do_not_go_together_are_left_out_together() -> None:
    remarks: list[str] = []
    assert accepted({"chunking.tokens": 100, "chunking.overlap": 90, "model": "m"}, remarks) == {"model": "m"}
    assert len(remarks) == 2
