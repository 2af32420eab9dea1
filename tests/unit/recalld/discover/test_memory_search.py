"""OpenClaw's memory.search, and the older memorySearch, in recalld's words and without its secrets."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from recalld.discover.memory_search import translate
from recalld.discover.openclaw_settings import OpenClawSettings
from recalld.discover.settings_file import accepted
from recalld.settings.keys import URL_KEYS, dotted, memory_sections, nested, top_level_keys
from schemas.settings import FallbackName, ProviderName


def translated(tree: dict[str, Any], **options: Any) -> tuple[dict[str, Any], list[str]]:
    done = translate(tree, OpenClawSettings(**options))
    return done.values, done.remarks


OURS = [
    pytest.param(key.name, key.default, id=key.name)
    for key in top_level_keys().values()
    if key.shape == "value" and key.default is not None and not key.secret and key.name not in URL_KEYS
    if key.name.partition(".")[0] in memory_sections() | {"store", "cache"}
]


@pytest.mark.parametrize(("key", "value"), OURS)
def test_what_is_called_the_same_is_taken_over(key: str, value: Any) -> None:
    theirs = re.sub("_([a-z])", lambda sign: sign[1].upper(), key)
    values, remarks = translated(nested({theirs: value}))
    assert (values, remarks) == ({key: value}, [])
    assert dotted(accepted(values, remarks)) == values, "recalld itself accepts it"


@pytest.mark.parametrize(
    ("theirs", "value", "ours"),
    [
        ("remote.nonBatchConcurrency", 3, {"remote.concurrency": 3}),
        ("remote.baseUrl", "http://127.0.0.1:9000/v1", {"remote.base_url": "http://127.0.0.1:9000/v1"}),
        ("local.modelPath", "~/models/m.gguf", {"local.model_path": "~/models/m.gguf"}),
        ("extraPaths", ["~/wiki", {"path": "/srv/docs"}, "~/wiki"], {"extra_paths": ["~/wiki", "/srv/docs"]}),
        ("store.fts.tokenizer", "unicode61", {}),
        ("store.driver", "sqlite", {}),
        ("store.path", "~/x", {}),
    ],
)
def test_what_is_called_or_written_otherwise_is_taken_over(theirs: str, value: Any, ours: dict[str, Any]) -> None:
    assert translated(nested({theirs: value})) == (ours, [])


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
        ({"remote": {"baseUrl": "https://user:sk-secret@host/v1"}}, "a key may be in it"),
        ({"remote": {"baseUrl": "${URL}"}}, "the variable URL"),
        ({"remote": {"baseUrl": "sk-secret"}}, "remote.baseUrl"),
        ({"local": {"modelPath": "hf:org/repo/sk-secret.gguf"}}, "bundled model"),
        ({"multimodal": {"enabled": True}}, "multimodal has no counterpart"),
        ({"fallback": "auto"}, "fallback auto"),
        ({"sources": "sk-secret"}, "sources"),
        ({"extraPaths": [3]}, "extraPaths"),
        ({"extraPaths": [{"path": "~/wiki", "pattern": "!(sk-secret).md"}]}, "pattern"),
        ({"inputType": "${TYPE}"}, "query_input_type"),
        ({"provider": "sk-secret and more"}, "the provider"),
        ({"provider": "local", "model": "sk-secret"}, "local.model_path"),
        ({"store": {"fts": {"tokenizer": "trigram"}}}, "store.fts.tokenizer"),
        ({"rememberAcrossConversations": "sk-secret"}, "rememberAcrossConversations"),
        ({"credentials": {"openai": "sk-secret"}}, "credentials.openai"),
        ({"store": {"url": "postgresql://me:sk-secret@host"}}, "store.url"),
        ({"model": "${MODEL}"}, "model"),
        ({"query": {"maxResults": ["sk-secret"]}}, "query.maxResults"),
        ({"query": {"hybrid": {"vectorWeight": 0.5}}}, "fusion"),
    ],
)
def test_what_is_not_taken_over_is_said_without_what_it_is(tree: dict[str, Any], words: str) -> None:
    values, remarks = translated(tree)
    assert any(words in remark for remark in remarks)
    assert "sk-secret" not in str(values) + str(remarks)


def test_a_provider_that_recalld_does_not_know_takes_with_it_what_was_meant_for_it() -> None:
    values, remarks = translated(
        {
            "provider": "github-copilot",
            "model": "text-embedding-3-small",
            "inputType": "x",
            "remote": {"baseUrl": "http://h/v1"},
            "query": {"maxResults": 3},
        }
    )
    assert values == {"query.max_results": 3}
    (remark,) = remarks
    assert "github-copilot" in remark
    assert all(name in remark for name in get_args(ProviderName) if name not in ("auto", "stub"))


@pytest.mark.parametrize("name", get_args(ProviderName))
def test_every_provider_of_recalld_is_taken_by_its_name(name: str) -> None:
    assert translated({"provider": f" {name.upper()} "})[0] == {"provider": name}
    if name in get_args(FallbackName):
        assert translated({"fallback": name}) == ({"fallback": name}, [])


def test_a_provider_may_be_one_of_the_files_own_servers() -> None:
    providers = {
        "ollama-gpu": {"api": "ollama", "baseUrl": "http://gpu:11435"},
        "proxy": {"api": "openai-completions", "baseUrl": "https://user:sk-secret@h/v1"},
        "ollama": {"baseUrl": "http://other:11434"},
        "google": {"api": "google-generative-ai"},
    }
    assert translated({"provider": "Ollama-GPU"}, providers=providers)[0] == {
        "provider": "ollama",
        "remote.base_url": "http://gpu:11435",
    }
    assert translated({"provider": "ollama"}, providers=providers)[0]["remote.base_url"] == "http://other:11434"
    named = {"provider": "ollama", "remote": {"baseUrl": "http://h"}}
    assert translated(named, providers=providers)[0]["remote.base_url"] == "http://h"
    values, remarks = translated({"provider": "proxy"}, providers=providers)
    assert values == {"provider": "openai-compatible"}
    assert "sk-secret" not in str(remarks)
    values, remarks = translated({"provider": "google"}, providers=providers)
    assert (values, len(remarks)) == ({}, 1)


def test_one_input_type_is_both_and_the_specific_ones_win() -> None:
    assert translated({"inputType": "a"})[0] == {"query_input_type": "a", "document_input_type": "a"}
    for tree in ({"inputType": "a", "queryInputType": "q"}, {"queryInputType": "q", "inputType": "a"}):
        assert translated(tree)[0] == {"query_input_type": "q", "document_input_type": "a"}


@pytest.mark.parametrize(
    ("paths", "ours"),
    [
        ([{"path": "a", "pattern": "runbooks/**/*.md"}], [{"path": "a", "include": ["runbooks/**/*.md"]}]),
        ([{"path": "a", "pattern": "*.md"}], [{"path": "a", "include": ["./*.md"]}]),
        ([{"path": "a", "pattern": "{x,y/z}/*.{md,mdx}"}], None),
        (
            [{"path": "a", "pattern": "x/*"}, {"path": " a", "pattern": "y/*"}],
            [{"path": "a", "include": ["x/*", "y/*"]}],
        ),
        ([{"path": "a", "pattern": "x/*"}, "a"], ["a"]),
        (["a", {"path": "a", "pattern": "x/*"}], ["a"]),
        (["a", {"path": "a", "pattern": ""}], ["a"]),
    ],
)
def test_patterns_of_extra_paths_become_globs(paths: list[Any], ours: list[Any] | None) -> None:
    expected = ours or [{"path": "a", "include": ["x/*.md", "x/*.mdx", "y/z/*.md", "y/z/*.mdx"]}]
    values, remarks = translated({"extraPaths": paths})
    assert values == {"extra_paths": expected}
    assert accepted(values, remarks) == {"extra_paths": expected}
    assert remarks == []


@pytest.mark.parametrize("pattern", ["!(a).md", "{a", "[", "../*.md", 3, "{a,b}" * 30, "${X}/*.md"])
def test_a_path_is_left_out_rather_than_read_whole_when_its_pattern_cannot_be_had(pattern: Any) -> None:
    values, remarks = translated({"extraPaths": [{"path": "~/wiki", "pattern": pattern}, "~/more"]})
    assert values == {"extra_paths": ["~/more"]}
    assert len(remarks) == 1


@pytest.mark.parametrize(
    ("tree", "isolates_chats", "sources", "private"),
    [
        ({}, False, ["memory", "sessions"], True),
        ({}, True, ["memory"], False),
        ({"rememberAcrossConversations": True}, True, ["memory", "sessions"], True),
        ({"rememberAcrossConversations": False}, False, ["memory"], False),
        ({"rememberAcrossConversations": False, "sources": ["sessions"]}, False, ["memory"], False),
        ({"rememberAcrossConversations": True, "sources": ["memory"]}, False, ["memory", "sessions"], True),
        (
            {"rememberAcrossConversations": True, "sources": ["memory", "sessions"]},
            False,
            ["memory", "sessions"],
            False,
        ),
        ({"sources": ["memory", "sessions"]}, True, ["memory"], False),
        (
            {"sources": ["memory", "sessions"], "experimental": {"sessionMemory": True}},
            True,
            ["memory", "sessions"],
            False,
        ),
    ],
)
def test_sources_are_those_that_openclaw_searches(
    tree: dict[str, Any], isolates_chats: bool, sources: list[str], private: bool
) -> None:
    done = translate(tree, OpenClawSettings(is_current=True, isolates_chats=isolates_chats))
    assert (done.values["sources"], done.private_sessions) == (sources, private)
    without = {"sources": ["memory", "sessions"], "experimental": {"sessionMemory": False}}
    assert translate(without, OpenClawSettings()).values["sources"] == ["memory"]


def test_defaults_of_todays_openclaw_are_set_where_they_are_not_recallds() -> None:
    values, remarks = translated({}, is_current=True)
    assert values == {
        "sources": ["memory", "sessions"],
        "query.hybrid.mmr.enabled": True,
        "query.hybrid.temporal_decay.enabled": True,
    }
    assert len(remarks) == 2
    assert "OPENAI_API_KEY" in remarks[0]
    assert "candidate_multiplier" in remarks[1]
    assert translated({}) == ({}, [])


@pytest.mark.parametrize("provider", [{}, {"provider": "auto"}])
def test_the_provider_that_is_not_named_is_openai_where_something_was_set_for_it(provider: dict[str, Any]) -> None:
    tree = {**provider, "model": "text-embedding-3-large"}
    assert translated(tree, is_current=True)[0]["provider"] == "openai"
    assert translated(tree)[0].get("provider") == provider.get("provider")


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
