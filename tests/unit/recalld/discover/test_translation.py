"""OpenClaw's settings in recalld's words and without its secrets."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from recalld.discover.openclaw import leaves_of
from recalld.discover.translation import TABLE, Translation, accepted
from recalld.settings.keys import URL_KEYS, dotted, memory_sections, nested, top_level_keys
from schemas.settings import ProviderName

QMD, DEFAULTS = "memory.qmd", "agents.defaults"
FLUSH, PRUNING = f"{DEFAULTS}.compaction.memoryFlush", f"{DEFAULTS}.contextPruning"
HOOK = "hooks.internal.entries.session-memory"
PRIVATE = [{"action": "allow", "chat_type": "direct"}]


def translated(tree: dict[str, Any], *, has_transcripts: bool = False) -> Translation:
    is_current = "search" in tree.get("memory", {})
    return Translation(leaves_of(tree, {}), is_current=is_current, has_transcripts=has_transcripts)


def older(**search: Any) -> tuple[dict[str, Any], list[str]]:
    done = translated({"memorySearch": nested(search)})
    return done.values, done.remarks


#: Section of ours -> theirs; a section that is not here is one of memorySearch.
SECTIONS = {"qmd": QMD, "context.pruning": PRUNING, "context.flush": FLUSH}

OURS = [
    pytest.param(key.name, key.default, id=key.name)
    for key in top_level_keys().values()
    if key.shape == "value" and key.default is not None and not key.secret and key.name not in URL_KEYS
    if key.name.startswith(tuple(SECTIONS))
    or key.name.partition(".")[0] in (memory_sections() - {"context", "backend", "provider"}) | {"store", "cache"}
    # Theirs have another unit or name.
    if not key.name.endswith(("_minutes", "_seconds", "reserve_tokens", "transcript_bytes"))
]


@pytest.mark.parametrize(("key", "value"), OURS)
def test_what_is_called_the_same_is_taken_over(key: str, value: Any) -> None:
    section = next((section for section in SECTIONS if key.startswith(section)), "")
    name = re.sub("_([a-z])", lambda sign: sign[1].upper(), key.removeprefix(f"{section}."))
    done = translated(nested({f"{SECTIONS.get(section, 'memorySearch')}.{name}": value}))
    assert done.values == {key: value}
    assert done.remarks == [remark for remark in done.remarks if "weights" in remark]
    assert dotted(accepted(done.values, done.remarks), whole_keys=done.values) == done.values


@pytest.mark.parametrize(
    ("theirs", "value", "ours"),
    [
        ("memorySearch.remote.nonBatchConcurrency", 3, {"remote.concurrency": 3}),
        ("memorySearch.remote.baseUrl", "http://127.0.0.1:9000/v1", {"remote.base_url": "http://127.0.0.1:9000/v1"}),
        ("memorySearch.local.modelPath", "~/models/m.gguf", {"local.model_path": "~/models/m.gguf"}),
        ("memorySearch.local.modelPath", "hf:org/repo/m.gguf", {"local.model_path": "hf:org/repo/m.gguf"}),
        ("memorySearch.extraPaths", ["~/w", {"path": "/d"}, "~/w"], {"extra_paths": ["~/w", "/d"]}),
        ("memorySearch.store.driver", "sqlite", {}),
        ("memorySearch.store.path", "~/x", {}),
        ("memory.citations", "on", {"citations": "on"}),
        (f"{QMD}.update.interval", "90s", {"qmd.update.interval_minutes": 1.5}),
        (f"{QMD}.update.embedInterval", "1h30m", {"qmd.update.embed_interval_minutes": 90}),
        (f"{QMD}.update.debounceMs", 2500, {"qmd.update.debounce_seconds": 2.5}),
        (f"{QMD}.update.updateTimeoutMs", 1000, {"qmd.update.timeout_seconds": 1}),
        (f"{QMD}.sessions.retentionDays", 30, {"qmd.sessions.retention_days": 30}),
        (
            f"{QMD}.paths",
            [{"path": "~/b", "pattern": "x/*.md"}],
            {"extra_paths": [{"path": "~/b", "include": ["x/*.md"]}]},
        ),
        (f"{DEFAULTS}.compaction.reserveTokensFloor", 9000, {"context.flush.reserve_tokens": 9000}),
        (f"{FLUSH}.forceFlushTranscriptBytes", "2mb", {"context.flush.transcript_bytes": 2 * 1024 * 1024}),
        (f"{FLUSH}.forceFlushTranscriptBytes", 0, {"context.flush.transcript_bytes": 10**15}),
        (f"{FLUSH}.model", {"primary": "ollama/qwen3", "fallbacks": ["x"]}, {"context.flush.model": "ollama/qwen3"}),
        (f"{FLUSH}.prompt", "Save.\n{x} NO_REPLY", {"context.flush.prompt": "Save.\n{x} NO_REPLY"}),
        (f"{FLUSH}.systemPrompt", "Save it.", {"context.flush.system_prompt": "Save it."}),
        ("memorySearch.sync.embeddingBatchTimeoutSeconds", 300, {"remote.timeout_seconds": 300}),
        (f"{PRUNING}.ttl", "1h", {"context.pruning.ttl_minutes": 60}),
        (f"{PRUNING}.tools.deny", ["browser*"], {"context.pruning.tools.deny": ["browser*"]}),
        (f"{DEFAULTS}.bootstrapMaxChars", 900, {"context.bootstrap.max_chars": 900}),
        (f"{DEFAULTS}.bootstrapTotalMaxChars", 900, {"context.bootstrap.total_max_chars": 900}),
        (f"{DEFAULTS}.userTimezone", "Europe/Berlin", {"context.timezone": "Europe/Berlin"}),
        (f"{HOOK}.messages", 20, {"context.session_notes.messages": 20}),
        (f"{HOOK}.enabled", False, {}),
        (f"{QMD}.update.waitForBootSync", False, {}),
        (f"{DEFAULTS}.model", "opus", {}),
    ],
)
def test_what_is_called_or_written_otherwise_is_taken_over(theirs: str, value: Any, ours: dict[str, Any]) -> None:
    done, remarks = translated(nested({theirs: value})), []
    assert (done.values, done.remarks) == (ours, [])
    assert (dotted(accepted(done.values, remarks), whole_keys=ours), remarks) == (ours, [])


@pytest.mark.parametrize(
    ("theirs", "value", "words"),
    [
        ("memorySearch.remote.apiKey", "sk-secret", "set OPENAI_API_KEY"),
        ("env", {"KEY": "sk-secret"}, "not copied"),
        ("memorySearch.remote.headers", {"X-Token": "sk-secret"}, "RECALLD_REMOTE__HEADERS"),
        ("memorySearch.remote.baseUrl", "https://user:sk-secret@host/v1", "a key may be in it"),
        ("memorySearch.remote.baseUrl", "${URL}", "variable there"),
        ("memorySearch.remote.baseUrl", "sk-secret", "remote.baseUrl"),
        ("memorySearch.local.modelPath", "https://host/sk-secret.gguf", "bundled model"),
        ("memorySearch.multimodal", {"enabled": True}, "multimodal has no counterpart"),
        ("memorySearch.sources", "sk-secret", "sources was not understood"),
        ("memorySearch.extraPaths", [3], "one of extraPaths"),
        ("memorySearch.provider", "sk-" + "secret" * 9, "the provider is unknown"),
        ("memorySearch.provider", "github-copilot", "the provider github-copilot is unknown"),
        ("memorySearch.model", "${MODEL}", "write its value as model"),
        ("memorySearch.query.hybrid.textWeight", 0.5, "weighted"),
        (f"{QMD}.mcporter.enabled", True, "memory.qmd.mcporter.enabled has no counterpart"),
        (f"{QMD}.update.waitForBootSync", True, "waitForBootSync has no counterpart"),
        (f"{QMD}.update.interval", "sk-secret", "memory.qmd.update.interval was not understood"),
        (f"{FLUSH}.forceFlushTranscriptBytes", "sk-secret", "forceFlushTranscriptBytes was not understood"),
        (f"{HOOK}.enabled", True, "switch it off"),
    ],
)
def test_a_value_that_is_not_taken_over_is_named_without_its_secrets(theirs: str, value: Any, words: str) -> None:
    [remark] = translated(nested({theirs: value})).remarks
    assert words in remark
    assert "sk-secret" not in remark


def test_every_row_of_the_table_names_a_setting_or_a_sentence() -> None:
    settings = " ".join(top_level_keys())
    assert {row.ours for row in TABLE.values() if row.ours and row.ours.removesuffix("_ms") not in settings} == set()


@pytest.mark.parametrize(
    ("qmd", "values"),
    [
        ({}, {"qmd.sessions.enabled": False, "scope.default": "deny", "scope.rules": PRIVATE}),
        (
            {"scope": {"default": "allow", "rules": [{"action": "deny", "match": {"keyPrefix": "hook:"}}]}},
            {"scope.default": "allow", "scope.rules": [{"action": "deny", "key_prefix": "hook:"}]},
        ),
        ({"includeDefaultMemory": False}, {"exclude": ["MEMORY.md", "memory.md", "USER.md", "memory/"]}),
        ({"sessions": {"enabled": True}}, {"qmd.sessions.enabled": True}),
    ],
)
def test_qmd_answers_the_sessions_and_has_the_documents_that_it_has_there(
    qmd: dict[str, Any], values: dict[str, Any]
) -> None:
    done = translated({"memory": {"backend": "qmd", "qmd": qmd}})
    assert done.values.items() >= {"backend": "qmd", **values}.items()
    assert len(done.remarks) == 1
    assert accepted(done.values, done.remarks)["backend"] == "qmd"
    assert len(done.remarks) == 1
    unused = translated({"memory": {"qmd": qmd}}).values
    assert not {"scope.default", "scope.rules", "exclude"} & unused.keys()


@pytest.mark.parametrize("name", get_args(ProviderName))
def test_every_provider_of_recalld_is_taken_by_its_name(name: str) -> None:
    assert older(provider=f" {name.upper()} ")[0] == ({"provider": name} if name != "auto" else {})


@pytest.mark.parametrize(
    ("search", "values"),
    [
        ({"provider": "Ollama-GPU"}, {"provider": "ollama", "remote.base_url": "http://gpu:11435"}),
        ({"provider": "ollama"}, {"provider": "ollama", "remote.base_url": "http://other:11434"}),
        (
            {"provider": "ollama", "remote": {"baseUrl": "http://h"}},
            {"provider": "ollama", "remote.base_url": "http://h"},
        ),
        ({"provider": "proxy"}, {"provider": "openai-compatible"}),
        ({"provider": "google", "model": "m", "outputDimensionality": 9, "enabled": True}, {"enabled": True}),
        ({"provider": "local", "model": "m"}, {"provider": "local"}),
    ],
)
def test_a_provider_may_be_one_of_the_files_own_servers(search: dict[str, Any], values: dict[str, Any]) -> None:
    providers = {
        "ollama-gpu": {"api": "ollama", "baseUrl": "http://gpu:11435"},
        "proxy": {"api": "openai-completions", "baseUrl": "https://user:sk-secret@h/v1"},
        "ollama": {"baseUrl": "http://other:11434"},
        "google": {"api": "google-generative-ai"},
    }
    done = translated({"memorySearch": search, "models": {"providers": providers}})
    assert done.values == values
    assert "sk-secret" not in str(done.remarks)


@pytest.mark.parametrize("search", [{}, {"provider": "auto"}])
def test_the_provider_that_is_not_named_is_openai_where_something_was_set_for_it(search: dict[str, Any]) -> None:
    tree = {"memory": {"search": {**search, "model": "text-embedding-3-large"}}}
    assert translated(tree).values["provider"] == "openai"
    assert "provider" not in translated({"memory": {"search": search}}).values


def test_one_input_type_is_both_and_the_specific_ones_win() -> None:
    assert older(inputType="a")[0] == {"query_input_type": "a", "document_input_type": "a"}
    assert older(inputType="a", queryInputType="q")[0] == {"query_input_type": "q", "document_input_type": "a"}


@pytest.mark.parametrize(
    ("pattern", "include"),
    [
        ("runbooks/**/*.md", ["runbooks/**/*.md"]),
        ("*.md", ["./*.md"]),
        ("x/*.{txt,md,mdx}", ["x/*.md"]),
        # Left out rather than read whole.
        *((pattern, None) for pattern in ("!(a).md", "{a", "[", "../*.md", "{a,b}/*.md", "${X}/*.md")),
    ],
)
def test_patterns_of_extra_paths_become_globs(pattern: Any, include: list[str] | None) -> None:
    values, remarks = older(extraPaths=[{"path": "~/wiki", "pattern": pattern}, "~/more"])
    kept = [{"path": "~/wiki", "include": include}] if include else []
    assert (values, len(remarks)) == ({"extra_paths": [*kept, "~/more"]}, 0 if include else 1)
    assert accepted(values, remarks) == values


BOTH = ["memory", "sessions"]


@pytest.mark.parametrize(
    ("search", "apart", "sources", "private"),
    [
        ({}, False, BOTH, True),
        ({}, True, ["memory"], False),
        ({"rememberAcrossConversations": True}, True, BOTH, True),
        ({"rememberAcrossConversations": False}, False, ["memory"], False),
        ({"rememberAcrossConversations": False, "sources": ["sessions"]}, False, ["memory"], False),
        ({"rememberAcrossConversations": True, "sources": ["memory"]}, False, BOTH, True),
        ({"rememberAcrossConversations": True, "sources": BOTH}, False, BOTH, False),
        ({"sources": BOTH}, True, ["memory"], False),
        ({"sources": BOTH, "experimental": {"sessionMemory": True}}, True, BOTH, False),
    ],
)
@pytest.mark.parametrize("place", ["session", "bindings"])
def test_sources_are_those_that_openclaw_searches_and_transcripts_stay_out_of_groups(
    search: dict[str, Any], apart: bool, sources: list[str], private: bool, place: str
) -> None:
    scopes = {
        "session": {"session": {"dmScope": "per-peer"}},
        "bindings": {"bindings": [{"session": {"dmScope": "main"}}]},
    }
    tree = {"memory": {"search": search}, **(scopes[place] if apart else {})}
    values = translated(tree, has_transcripts=True).values
    assert values["sources"] == sources
    assert [rule["chat_type"] for rule in values.get("scope.rules", ())] == (["group", "channel"] if private else [])
    assert older(sources=BOTH, experimental={"sessionMemory": False})[0] == {"sources": ["memory"]}


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"chunking.tokens": 10, "query.max_results": True, "model": "m"}, {"model": "m"}),
        ({"query.min_score": float("nan"), "sync.watch": 1, "cache.max_entries": 5}, {"cache.max_entries": 5}),
        ({"sync.watch_debounce_ms": "900", "model": 7, "fallback": "none"}, {"fallback": "none"}),
        ({"fallback": "auto", "context.timezone": "Moon", "citations": "on"}, {"citations": "on"}),
        # What does not go together is left out together.
        ({"chunking.tokens": 100, "chunking.overlap": 90, "model": "m"}, {"model": "m"}),
    ],
)
def test_values_that_recalld_refuses_are_left_out_and_named(values: dict[str, Any], kept: dict[str, Any]) -> None:
    remarks: list[str] = []
    assert dotted(accepted(values, remarks)) == kept
    assert [remark.split()[0] for remark in remarks] == [key for key in values if key not in kept]
