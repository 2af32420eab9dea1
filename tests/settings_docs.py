"""Documentation of the settings, made from the schema: the table of docs/settings.md and the example file.

`make docs` writes both (`tests.doc_tables` the table); a test fails when they differ from the schema.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recalld.settings.keys import SettingKey, agent_keys, top_level_keys

_TITLE = """\
# Every setting of recalld, with its default. Copy what you change to recalld.toml; lines that begin with #
# are comments. Paths may begin with ~; relative ones are relative to the folder of the file.
# In the environment, query.max_results is RECALLD_QUERY__MAX_RESULTS.
"""

_AGENTS = """\

# One table for every agent. An agent may override everything above that docs/settings.md marks with "yes":
# lists and values replace, extra_paths are united.
"""

#: Values to show for keys whose default says nothing about their form.
_SAMPLES: dict[str, Any] = {
    "model": "text-embedding-3-small",
    "output_dimensionality": 512,
    "remote.base_url": "http://127.0.0.1:11434/v1",
    "remote.api_key": "...",
    "remote.requests_per_minute": 3000,
    "remote.tokens_per_minute": 1_000_000,
    "remote.timeout_seconds": 300,
    "remote.query_timeout_seconds": 60,
    "remote.price_per_million_tokens": 0.02,
    "local.model_path": "multilingual-e5-small",
    "local.model_cache_dir": "~/.cache/models",
    "query_input_type": "query",
    "document_input_type": "document",
    "query_prefix": "search_query: ",
    "document_prefix": "search_document: ",
    "qmd.sessions.retention_days": 90,
    "context.timezone": "Europe/Berlin",
    "context.flush.model": "gpt-5-mini",
    "context.flush.prompt": "Save decisions and open tasks to memory/YYYY-MM-DD.md.",
    "context.flush.system_prompt": "The conversation is about to be compacted.",
    "query.rerank.base_url": "https://api.jina.ai/v1",
    "context.session_notes.slug.base_url": "http://127.0.0.1:11434/v1",
    "context.session_notes.slug.model": "qwen3",
    "context.session_notes.slug.api_key": "...",
    "context.injection.min_score": 0.5,
    "store.url": "postgresql://recalld@127.0.0.1/recalld",
    "store.migrate_url": "postgresql://owner:...@db.lan/recalld",
    "store.path": "~/memory-indexes",
    "store.vector.extension_path": "~/lib/vec0.so",
    "cache.max_entries": 500_000,
    "cost.tokens_per_day": 2_000_000,
    "broker.url": "redis://127.0.0.1:6379/0",
    "broker.namespace": "memory",
    "hooks.port": 7374,
    "workers.port": 7375,
    "up.port": 7372,
    "id": "main",
    "workspace": "~/notes",
}


def settings_table() -> str:
    """Return a table: key, default, allowed values, meaning, and "yes" where an agent may override it."""
    rows = ["| key | default | allowed | meaning | per agent |", "|---|---|---|---|---|"]
    per_agent = agent_keys()
    rows += [
        _row(f"`{key.name}`", key, "yes" if key.name in per_agent else "")
        for key in top_level_keys().values()
        if key.name != "agents"
    ]
    rows += [_row(f"`agents.{key.name}`", key, "only") for key in agent_keys().values() if _is_own(key)]
    return "\n".join(rows) + "\n"


def example_toml() -> str:
    """Return a settings file with every key commented out: valid with and without the comment signs."""
    return "".join([_TITLE, *_section_lines(list(top_level_keys().values())), _AGENTS, *_agent_lines()])


def _agent_lines() -> Iterator[str]:
    yield "#[[agents]]\n"
    for key in agent_keys().values():
        if _is_own(key):
            yield _entry(key, key.name)


def _section_lines(keys: list[SettingKey]) -> Iterator[str]:
    # Keys of the top level first: below a [section] they would belong to it.
    section = ""
    for key in sorted(keys, key=lambda key: "." in key.name):
        if key.name == "agents":
            continue
        above, _, last = key.name.rpartition(".")
        if above != section:
            section = above
            yield f"\n#[{section}]\n"
        yield "\n" if not section else ""
        yield _entry(key, last)


def _entry(key: SettingKey, name: str) -> str:
    unset = " Unset by default." if key.default is None and not key.required else ""
    meaning = textwrap.fill(
        f"{_meaning(key)} Allowed: {key.allowed}.{unset}", 110, initial_indent="# ", subsequent_indent="# "
    )
    value = _SAMPLES.get(key.name, "..." if key.default is None else key.default)
    return f"{meaning}\n#{name} = {_toml(value)}\n"


def _row(name: str, key: SettingKey, per_agent: str) -> str:
    default = "required" if key.required else "unset" if key.default is None else f"`{_toml(key.default)}`"
    allowed = key.allowed.replace("|", "\\|")
    return f"| {name} | {default} | {allowed} | {_meaning(key)} | {per_agent} |".replace("|  |", "| |")


def _meaning(key: SettingKey) -> str:
    provider = key.name.rpartition(".")[2]
    if key.name.startswith("credentials."):
        return f"Key of {provider}; {provider.upper()}_API_KEY sets it, too."
    return key.description


def _is_own(key: SettingKey) -> bool:
    return key.name not in top_level_keys()


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(example_toml(), "utf-8")
