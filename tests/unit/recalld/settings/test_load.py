"""Sources of settings, their order, and the message when something is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from recalld.commands.config import effective
from recalld.settings.keys import top_level_keys
from recalld.settings.load import (
    LoadedSettings,
    check_workspace,
    find_config,
    find_home,
    load,
    select_agent,
)
from recalld.settings.workspaces import remember_workspace
from schemas.errors import UserError
from schemas.settings import ExtraPath


class Case:
    """A home folder, a settings file and an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.file = folder / "etc" / "recalld.toml"
        self.file.parent.mkdir()
        self.environment: dict[str, str] = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "no-config")}

    def write(self, text: str) -> Path:
        self.file.write_text(text, "utf-8")
        return self.file

    def load(self, **arguments: Any) -> LoadedSettings:
        config = str(self.file) if self.file.exists() else None
        return load(**{"home": str(self.home), "config": config, "environment": self.environment, **arguments})

    def problems(self, **arguments: Any) -> list[str]:
        with pytest.raises(UserError) as raised:
            self.load(**arguments)
        assert raised.value.exit_code == 2
        return str(raised.value).splitlines()


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("HOME", str(tmp_path))
    return Case(tmp_path)


def test_home_is_the_flag_then_the_variable_then_the_xdg_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_home("/a", environment={"RECALLD_HOME": "/b"}) == Path("/a")
    assert find_home(environment={"RECALLD_HOME": "~/b", "XDG_DATA_HOME": "/c"}) == tmp_path / "b"
    assert find_home(environment={"XDG_DATA_HOME": "/c"}) == Path("/c/recalld")
    assert find_home(environment={}) == tmp_path / ".local" / "share" / "recalld"


def test_the_settings_file_is_looked_for_in_a_fixed_order(tmp_path: Path) -> None:
    home, usual = tmp_path / "home", tmp_path / "config" / "recalld" / "recalld.toml"
    files = {name: tmp_path / f"{name}.toml" for name in ("flag", "variable")}
    for file in (*files.values(), usual, home / "recalld.toml"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    variables = {"RECALLD_CONFIG": str(files["variable"]), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert find_config(str(files["flag"]), home=home, environment=variables) == files["flag"]
    assert find_config(home=home, environment=variables) == files["variable"]
    del variables["RECALLD_CONFIG"]
    assert find_config(home=home, environment=variables) == usual
    usual.unlink()
    assert find_config(home=home, environment=variables) == home / "recalld.toml"


def test_a_settings_file_in_the_current_folder_is_not_trusted(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    (case.folder / "recalld.toml").write_text("provider = 'openai'\n", "utf-8")
    monkeypatch.chdir(case.folder)
    assert case.load().settings.provider == "auto"


@pytest.mark.parametrize(
    ("text", "value", "key"),
    [
        ("true", True, "query.hybrid.mmr.enabled"),
        ("memory, sessions", ["memory", "sessions"], "sources"),
        ('["memory"]', ["memory"], "sources"),
        ("/a,/b", ["/a", "/b"], "extra_paths"),
        ('{"X-Team": "a"}', {"X-Team": "***"}, "remote.headers"),
        ('[{"action": "deny", "channel": "x"}]', [{"action": "deny", "channel": "x"}], "scope.rules"),
    ],
)
def test_variables_are_read_as_their_keys_want_them(case: Case, text: str, value: object, key: str) -> None:
    name = "RECALLD_" + key.upper().replace(".", "__")
    case.environment[name] = text
    loaded = case.load()
    assert effective(loaded.settings)[key] == value
    assert loaded.origins[key] == name


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "RECALLD_CREDENTIALS__OPENAI"])
def test_a_variable_may_name_a_file_that_holds_the_value(case: Case, name: str) -> None:
    secret = case.folder / "secret"
    secret.write_text("sk-from-file\n", "utf-8")
    case.environment[f"{name}_FILE"] = str(secret)
    loaded = case.load()
    assert loaded.settings.credentials.openai is not None
    assert loaded.settings.credentials.openai.get_secret_value() == "sk-from-file"
    assert loaded.origins["credentials.openai"] == f"{name}_FILE"


@pytest.mark.parametrize(
    ("settings", "environment", "expected"),
    [
        ("provider = 'openai'", {}, "http://proxy"),
        ("", {"OPENAI_API_KEY": "k"}, "http://proxy"),
        ("", {}, None),
        ("provider = 'gemini'", {"OPENAI_API_KEY": "k"}, None),
        ("provider = 'openai'\nremote.base_url = 'http://file'", {}, "http://proxy"),
        ("provider = 'openai'", {"RECALLD_REMOTE__BASE_URL": "http://ours"}, "http://ours"),
    ],
)
def test_the_address_for_openai_never_redirects_another_provider(
    case: Case, settings: str, environment: Mapping[str, str], expected: str | None
) -> None:
    case.write(settings + f"\n[[agents]]\nid = 'a'\nworkspace = '{case.folder}'\n")
    case.environment |= {"OPENAI_BASE_URL": "http://proxy", **environment}
    loaded = case.load()
    assert loaded.settings.remote.base_url == expected
    assert loaded.settings.agent("a").remote.base_url == expected


A = "[[agents]]\nid = 'a'\nworkspace = '/a'\n"
OTHER_PATHS = "extra_paths = ['/wiki', {path = '/vault', include = ['a/']}]\n"
OWN_PATHS = "extra_paths = ['/vault', {path = '/wiki', exclude = ['b/']}]\n"


@pytest.mark.parametrize(
    ("file", "environment", "arguments", "expected"),
    [
        ("\ufeffmodel = 'm'\n", {}, {}, {"model": ("m", "file"), "query.max_results": (6, "default")}),
        ("service.port = 1", {"RECALLD_SERVICE__PORT": "2"}, {}, {"service.port": (2, "RECALLD_SERVICE__PORT")}),
        (
            *("service.port = 1", {"RECALLD_SERVICE__PORT": "2"}, {"overrides": {"service.port": 3}}),
            {"service.port": (3, "--port"), "service.host": ("127.0.0.1", "default")},
        ),
        (
            *("", {"REDIS_URL": "redis://theirs", "GEMINI_API_KEY": "g", "OLLAMA_API_KEY": "o"}, {}),
            {"broker.url": ("***", "REDIS_URL"), "credentials.gemini": ("***", "GEMINI_API_KEY")},
        ),
        ("", {"RECALLD_MODEL": "", "OPENAI_API_KEY": ""}, {}, {"model": (None, "default")}),
        (
            *("", {"REDIS_URL": "redis://theirs", "RECALLD_BROKER__URL": "redis://ours"}, {}),
            {"broker.url": ("***", "RECALLD_BROKER__URL")},
        ),
        (
            *(f"query.max_results = 9\n{A}query.min_score = 0.2\n", {}, {}),
            {"agents.a.query.max_results": (9, "file"), "agents.a.query.min_score": (0.2, "file")},
        ),
        (
            *(f"scope.private_transcripts = 'direct'\n{A}scope.private_transcripts = 'all'\n", {}, {}),
            {"agents.a.scope.private_transcripts": ("all", "file")},
        ),
        (
            *(f"scope.default = 'deny'\n{A}scope.private_transcripts = 'all'\n", {}, {}),
            {"agents.a.scope.private_transcripts": ("all", "file"), "agents.a.scope.default": ("deny", "file")},
        ),
        (
            *(f"extra_paths = ['/shared']\n{A}extra_paths = ['/own', '/shared']\n", {}, {}),
            {"agents.a.extra_paths": (["/shared", "/own"], "file")},
        ),
        (
            *(f"{OTHER_PATHS}{A}{OWN_PATHS}", {}, {}),
            {"agents.a.extra_paths": ([{"path": "/wiki", "include": [], "exclude": ["b/"]}, "/vault"], "file")},
        ),
        (
            *(f"provider = 'local'\n{A}model = 'mine'\n", {"RECALLD_PROVIDER": "none", "RECALLD_MODEL": "theirs"}, {}),
            {"agents.a.provider": ("none", "RECALLD_PROVIDER"), "agents.a.model": ("mine", "file")},
        ),
        (
            *(f"provider = 'openai'\n{A}provider = 'mistral'\n", {"OPENAI_BASE_URL": "http://proxy"}, {}),
            {"agents.a.remote.base_url": (None, "default"), "remote.base_url": ("http://proxy", "OPENAI_BASE_URL")},
        ),
        (
            *("", {"RECALLD_AGENTS": '[{"id": "e", "workspace": "/e"}]'}, {}),
            {"agents.e.workspace": ("/e", "RECALLD_AGENTS")},
        ),
        (
            *(f"query.max_results = 3\n{A}", {}, {"workspace": "/w"}),
            {"agents.a.workspace": ("/a", "file"), "agents.main.workspace": ("/w", "--workspace")},
        ),
        (
            *(f"{A}model = 'mine'\n", {}, {"workspace": "/w", "agent": "a"}),
            {"agents.a.workspace": ("/w", "--workspace"), "agents.a.model": ("mine", "file")},
        ),
    ],
)
def test_stronger_sources_win_and_agents_inherit(
    case: Case, file: str, environment: dict[str, str], arguments: dict[str, Any], expected: dict[str, tuple[Any, str]]
) -> None:
    case.write(file)
    case.environment |= environment
    loaded = case.load(**arguments)
    values = effective(loaded.settings)
    origins = {key: origin.replace(str(case.file), "file") for key, origin in loaded.origins.items()}
    assert {key: (values[key], origins[key]) for key in expected} == expected


def test_paths_in_a_file_are_relative_to_its_folder_and_tilde_is_home(case: Case) -> None:
    case.write(
        "extra_paths = ['~/wiki', 'docs', {path = '~/vault'}]\nexclude = ['~/wiki/old']\n"
        "store.path = 'idx'\nlocal.model_path = 'models/m.gguf'\n"
        "local.model_cache_dir = '~/cache'\nstore.vector.extension_path = '../vec0.so'\n"
        "[[agents]]\nid = 'a'\nworkspace = 'notes'\nsessions = ['s', '~/t']\n"
        "[[agents]]\nid = 'b'\nworkspace = '~/b'\nlocal.model_path = 'multilingual-e5-small'\n"
        "[[agents]]\nid = 'c'\nworkspace = '~/c'\nlocal.model_path = 'hf:owner/repo.v1-GGUF/q8/m_Q8.gguf'\n"
    )
    settings = case.load().settings
    etc = case.file.parent
    assert settings.store.path == etc / "idx"
    assert settings.store.vector.extension_path == case.folder / "vec0.so"
    assert settings.local.model_cache_dir == case.folder / "cache"
    assert settings.local.model_path == str(etc / "models" / "m.gguf")
    first, second, third = settings.agents
    assert first.workspace == etc / "notes"
    assert first.sessions == (str(etc / "s"), str(case.folder / "t"))
    # Extra paths are relative to the workspace, which is the reader's business.
    assert first.extra_paths == (str(case.folder / "wiki"), "docs", ExtraPath(path=str(case.folder / "vault")))
    assert first.exclude == (str(case.folder / "wiki" / "old"),)
    assert second.workspace == case.folder / "b"
    assert second.local.model_path == "multilingual-e5-small"
    assert third.local.model_path == "hf:owner/repo.v1-GGUF/q8/m_Q8.gguf"


@pytest.mark.parametrize(
    "path",
    [
        *("/owner/repo/m.gguf", "owner/../m.gguf", "owner/repo/../m.gguf", "repo/m.gguf", "//owner/repo/m.gguf"),
        *(
            "owner/repo/m.bin",
            "owner/repo/m.gguf@main",
            "owner/repo/m.gguf#main",
            "owner/repo:Q8_0",
            "owner/repo/.gguf",
        ),
    ],
)
def test_a_file_of_the_hub_in_another_form_is_refused_in_one_sentence(case: Case, path: str) -> None:
    case.write(f"local.model_path = 'hf:{path}'\n[[agents]]\nid = 'a'\nworkspace = 'notes'\n")
    with pytest.raises(UserError, match=r"local\.model_path: must be hf:owner/repository/file\.gguf") as refused:
        case.load()
    assert refused.value.exit_code == 2


def test_a_remembered_workspace_is_used_when_nothing_names_an_agent(case: Case) -> None:
    remember_workspace(case.home, "main", Path("/one"))
    remember_workspace(case.home, "other", Path("/two"))
    remember_workspace(case.home, "main", Path("/three"))
    loaded = case.load()
    assert {agent.id: agent.workspace for agent in loaded.settings.agents} == {
        "main": Path("/three"),
        "other": Path("/two"),
    }
    assert loaded.origins["agents.main.workspace"] == str(case.home / "agents.json")
    assert [agent.id for agent in case.load(workspace="/w", agent="x").settings.agents] == ["x"]
    case.write("[[agents]]\nid = 'f'\nworkspace = '/f'\n")
    assert [agent.id for agent in case.load().settings.agents] == ["f"]
    assert [entry.name for entry in case.home.iterdir()] == ["agents.json"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("query.max_result = 3", "query.max_result: unknown key; did you mean query.max_results?"),
        ("max_results = 3", "max_results: unknown key; did you mean query.max_results?"),
        ("qurey.max_results = 3", "qurey.max_results: unknown key; did you mean query.max_results?"),
        ("[zzzz]\nyyyy = 3", "zzzz.yyyy: unknown key"),
        ("home = '/x'", "home: the home folder cannot be set here; use --home or RECALLD_HOME"),
        ("workspace = '/x'", "workspace: this key belongs to one agent; write it under [[agents]]"),
        ("query.max_results = 0", "query.max_results is 0; it must be a whole number from 1 to 100"),
        ("query.max_results = true", "query.max_results is true; it must be a whole number from 1 to 100"),
        ("sync.interval_minutes = inf", "sync.interval_minutes is inf; it must be a number, at least 0, and finite"),
        ("citations = 'yes'", "citations is 'yes'; it must be one of auto, on, off"),
        ("sources = ['memory', 'web']", "sources.1: input should be 'memory' or 'sessions'"),
        ("model = 5", "model is 5; it must be a text"),
        ("query = 5", "query must be a table with keys of its own, such as query.max_results"),
        ("chunking.overlap = 300", "chunking.overlap: overlap must be at most half of chunking.tokens"),
        ("remote.api_key = 5", "remote.api_key is not valid; it must be a text"),
        ("agents = 5", "agents must be tables, each written under its own [[agents]] line"),
        ("[[agents]]\nid = 'a'", "agents.a.workspace is missing; it must be a path"),
        ("[[agents]]\nworkspace = '/a'", "agents[0].id is missing; it must be a text of the form"),
        ("[[agents]]\nid = 'a b'\nworkspace = '/a'", "agents.a b.id is 'a b'; it must be a text of the form"),
        ("[[agents]]\nid = 'acme/a'\nworkspace = '/a'", "agents.acme/a.id is 'acme/a'; it must be a text of the form"),
        ("store.url = 'mysql://u:p@h/d'", "store.url: it is not the URL of a PostgreSQL, postgresql://...; correct it"),
        (
            f"{A}service.port = 1",
            "agents.a.service.port: this key holds for all agents; write it outside [[agents]]",
        ),
        (
            "chunking.tokens = 400\n[[agents]]\nid = 'a'\nworkspace = '/a'\nchunking.tokens = 100",
            "agents.a.chunking.tokens: overlap must be at most half of chunking.tokens",
        ),
        (
            "[[agents]]\nid = 'a'\nworkspace = '/a'\n[[agents]]\nid = 'A'\nworkspace = '/b'",
            "agents.A.id is used twice ('a' and 'A', and case does not count); give every agent an id of its own",
        ),
        ("[[scope.rules]]\naction = 'allow'\nchanel = 'x'", "scope.rules.0.chanel: unknown key"),
        ("scope.private_transcripts = 'group'", "scope.private_transcripts is 'group'; it must be one of"),
        ("exclude = ['a[b']", "exclude: 'a[b' has a [ without a ]"),
        ("extra_paths = [5]", "extra_paths.0: must be a path, or a table with path, include and exclude"),
        ("extra_paths = [{path = 'a', exclude = ['../b']}]", "extra_paths.0.exclude: '../b' has a component '..'"),
        ("extra_paths = [{path = 'a', pattern = '*'}]", "extra_paths.0.pattern: unknown key"),
        ("extra_paths = ['a', {include = ['*.md']}]", "extra_paths.1.path: is missing"),
    ],
)
def test_a_wrong_key_in_the_file_is_one_sentence_that_names_it(case: Case, text: str, problem: str) -> None:
    case.write(text + "\n")
    (found,) = case.problems()
    assert found.startswith(f"{case.file}: {problem}")


FAST = "qmd.search_mode is 'fast'; it must be one of search, vsearch, query"
QMD = "[qmd]\ncommand = 'q'\n"


@pytest.mark.parametrize(
    ("shared", "own", "mode", "problems"),
    [
        (f"{QMD}search_mode = 'fast'\n", "", None, [FAST, FAST]),
        (f"{QMD}limits.max_results = 0\n", "", None, ["qmd.limits.max_results is 0; it must be a whole number"] * 2),
        (f"{QMD}update.interval_minutes = true\n", "", None, ["qmd.update.interval_minutes is true; it must be"] * 2),
        (f"{QMD}comand = 'q'\n", "", None, ["qmd.comand: unknown key; did you mean qmd.command?"] * 2),
        (f"{QMD}problem = 'x'\n", "", None, ["qmd.problem: unknown key"] * 2),
        ("qmd = 3\n", "", None, ["qmd must be a table with keys of its own"] * 2),
        (QMD, "qmd.search_mode = 'fast'\n", None, [f"agents.b.{FAST}"]),
        (f"{QMD}search_mode = 'fast'\n", "qmd.search_mode = 'query'\n", None, [FAST]),
        (QMD, "", "fast", [FAST.replace("qmd.search_mode", "RECALLD_QMD__SEARCH_MODE")] * 2),
    ],
)
def test_a_mistake_in_the_section_of_a_backend_refuses_no_command_and_is_in_status(
    case: Case, shared: str, own: str, mode: str | None, problems: list[str]
) -> None:
    case.write(f"{shared}[[agents]]\nid = 'a'\nworkspace = '/a'\n[[agents]]\nid = 'b'\nworkspace = '/b'\n{own}")
    if mode is not None:
        case.environment["RECALLD_QMD__SEARCH_MODE"] = mode
    loaded = case.load()
    found = [agent.qmd.problem for agent in loaded.settings.agents if agent.qmd.problem is not None]
    assert all(
        one.removeprefix(f"{case.file}: ").startswith(problem) for one, problem in zip(found, problems, strict=True)
    )
    assert set(effective(loaded.settings)) == set(loaded.origins)
    case.write(f"qmd.search_mode = 'fast'\nqmd.problem = 'x'\ncitations = 'yes'\n{A}")
    [problem] = case.problems()
    assert "citations is 'yes'" in problem


def test_a_file_that_cannot_be_read_is_one_sentence(case: Case) -> None:
    case.write("a = 1\nb = = 2\n")
    (problem,) = case.problems()
    assert problem.startswith(f"{case.file} is not valid TOML: ")
    assert "line 2" in problem
    case.file.write_bytes(b"model = '\xff\xfe'\n")
    assert case.problems() == [f"{case.file} is not UTF-8 text"]
    (problem,) = case.problems(config=str(case.folder))
    assert problem.startswith(f"--config: {case.folder} ")


NO_JSON = ": must be a table of names and texts, written as JSON (Expecting value: line 1 column 1 (char 0))"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("QUERY__MAX_RESULT", "3", ": unknown variable; did you mean RECALLD_QUERY__MAX_RESULTS?"),
        ("HOMES", "3", ": unknown variable; did you mean RECALLD_HOME?"),
        ("QUERY__MAX_RESULTS", "many", " is 'many'; it must be a whole number from 1 to 100"),
        ("REMOTE__HEADERS", "a=b", NO_JSON),
        (
            "AGENTS",
            '[{"id": "a", "workspac": "/", "workspace": "/"}]',
            ".a.workspac: unknown key; did you mean workspace?",
        ),
    ],
)
def test_a_wrong_variable_is_one_sentence_that_names_it(case: Case, name: str, value: str, problem: str) -> None:
    case.environment[f"RECALLD_{name}"] = value
    assert case.problems() == [f"RECALLD_{name}{problem}"]


def test_a_secret_is_neither_shown_nor_told(case: Case) -> None:
    secret = "sk-very-secret"
    case.write(
        f"remote.api_key = '{secret}'\nremote.headers = {{Authorization = '{secret}'}}\n"
        f"remote.base_url = 'http://me:{secret}@host/v1'\nbroker.url = 'redis://:{secret}@host'\n"
        f"store.url = 'postgresql://me:{secret}@host/recalld'\n"
        f"credentials.openai = '{secret}'\n[[agents]]\nid = 'a'\nworkspace = '/a'\n"
    )
    loaded = case.load()
    assert loaded.settings.remote.api_key is not None
    assert loaded.settings.remote.api_key.get_secret_value() == secret
    values = effective(loaded.settings)
    assert secret not in json.dumps(values)
    assert values["remote.base_url"] == "http://***@host/v1"
    assert values["agents.a.remote.api_key"] == "***"
    case.write(f"remote.api_key = ['{secret}']\nremote.headers = ['{secret}']\ncredentials.openia = '{secret}'\n")
    assert secret not in "\n".join(case.problems())


def test_postgresql_without_its_client_is_one_sentence(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.write(f"store.url = 'postgresql://host/recalld'\n{A}")
    assert case.load().settings.store.url is not None
    monkeypatch.setitem(sys.modules, "psycopg_pool", None)
    assert case.problems() == [f"{case.file}: store.url needs the client of PostgreSQL; install recalld[fleet]"]


def test_every_key_has_an_origin_and_a_place_in_the_effective_tree(case: Case) -> None:
    case.write("[[agents]]\nid = 'a'\nworkspace = '/a'\n")
    loaded = case.load()
    values = effective(loaded.settings)
    assert set(values) == set(loaded.origins)
    assert set(top_level_keys()) - {"agents"} <= set(values)


def test_selecting_an_agent_says_what_to_do_when_it_is_not_clear(case: Case) -> None:
    with pytest.raises(UserError, match="recalld up --workspace DIR"):
        select_agent(case.load().settings, None)
    case.write("[[agents]]\nid = 'a'\nworkspace = '/a'\n[[agents]]\nid = 'b'\nworkspace = '/b'\n")
    settings = case.load().settings
    assert select_agent(settings, "b").id == "b"
    with pytest.raises(UserError, match=r"say which with --agent \(one of a, b\)"):
        select_agent(settings, None)
    with pytest.raises(UserError, match="no agent is called 'c'; known are a, b"):
        select_agent(settings, "c")
    case.write("[[agents]]\nid = 'research'\nworkspace = '/a'\n")
    with pytest.raises(UserError, match=r"no agent is called 'reserch'; did you mean research\?"):
        select_agent(case.load().settings, "reserch")


def test_a_workspace_is_checked_with_a_sentence_on_what_to_do(case: Case) -> None:
    (case.folder / "file").touch()
    for folder, words in (("gone", "does not exist; create it"), ("file", "is not a folder")):
        agent = case.load(workspace=str(case.folder / folder)).settings.agent("main")
        with pytest.raises(UserError, match=words) as raised:
            check_workspace(agent)
        assert raised.value.exit_code == 2
    check_workspace(case.load(workspace=str(case.folder)).settings.agent("main"))
