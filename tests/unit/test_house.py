"""The house as a whole: how its sentences begin, who acts in them, how wide its folders are, how they hang together.

The numbers are what there is of each fault today. They may only go down: lower them with what you mend.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from recalld.settings.keys import agent_keys, top_level_keys

REPOSITORY = Path(__file__).resolve().parents[2]

QUESTION = re.compile(r"\s*(What|Whether|Who|Whose|How|Where|Which|When|Why)\b")
VAGUE = re.compile(
    r"\b(nobody|somebody|anybody|whoever|those who|one that|is told|are told|is said|are said)\b", re.IGNORECASE
)

#: Package -> docstrings that begin with a question word; vague actors in docstrings, comments and messages.
FAULTS = {
    "schemas": (0, 0),
    "memory": (0, 2),  # words of a list that redaction knows
    "producers": (0, 0),
    "workers": (0, 0),
    "recalld": (0, 0),
}

#: Clause that carries a sentence where a noun could name the thing.
CLAUSE = re.compile(r"\b(what|whatever|whoever|whichever)\b", re.IGNORECASE)

#: Names of variables that tell their history instead of their content.
HISTORIES = re.compile(
    r"found|ones?|known|own|kept|said|asked|taken|made|told|shown|wanted|held|seen|gone|got|meant|owed|lent|lost|left|put"
    r"|others?|another|them|it|this|that|what|much|many|then|here|there|begun|ended|same|such|else|whole|few|heard|named"
    r"|everything|nothing|something|anything|called|looked|waited|item|thing|stuff"
)

#: Docstrings with such a clause, and variables with such a name, in the whole product.
CLAUSES, HISTORY_NAMES = 0, 75

#: Characters of a test's name at most.
LONGEST_TEST_NAME = 80

#: Modules of a folder at most, and the folders that have more.
WIDEST = 15
WIDE: dict[str, int] = {}


@cache
def sources() -> dict[str, str]:
    """Return the product's modules: dotted name -> text. A package has its folder's name."""
    files = (file for package in FAULTS for file in sorted((REPOSITORY / package).rglob("*.py")))
    named = {file.relative_to(REPOSITORY).with_suffix("").as_posix(): file.read_text("utf-8") for file in files}
    return {name.removesuffix("/__init__").replace("/", "."): text for name, text in named.items()}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(sources()[module])


@cache
def folder(module: str) -> str:
    """Return the folder of a module; a package is in itself."""
    return module if any(other.startswith(f"{module}.") for other in sources()) else module.rpartition(".")[0]


@pytest.mark.parametrize("package", FAULTS)
def test_docstrings_begin_with_a_verb_or_a_noun(package: str) -> None:
    found = [
        f"{module}: {said.splitlines()[0]}"
        for module in sources()
        if module.partition(".")[0] == package
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if QUESTION.match(said := ast.get_docstring(node) or "")
    ]
    assert len(found) <= FAULTS[package][0], "\n".join(found)


def test_docstrings_name_things_instead_of_circumscribing_them() -> None:
    places = [
        f"{module}: {docstring.splitlines()[0]}"
        for module in sources()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if CLAUSE.search((docstring := ast.get_docstring(node) or "").split("\n\n")[0])
    ]
    assert len(places) <= CLAUSES, "\n".join(places)


def test_variables_are_named_for_their_content() -> None:
    places = []
    for module in sources():
        for node in ast.walk(tree(module)):
            name = node.arg if isinstance(node, ast.arg) else ""
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            if HISTORIES.fullmatch(name.strip("_")):
                places.append(f"{module}:{getattr(node, 'lineno', 0)}: {name}")
    assert len(places) <= HISTORY_NAMES, "\n".join(places)


@pytest.mark.parametrize("package", FAULTS)
def test_sentences_name_who_acts(package: str) -> None:
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    found = [
        f"{module}:{token.start[0]}: {word[0]}"
        for module, text in sources().items()
        if module.partition(".")[0] == package
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type in kinds
        for word in VAGUE.finditer(token.string)
    ]
    assert len(found) <= FAULTS[package][1], "\n".join(found)


def test_names_of_tests_are_short_and_name_who_acts() -> None:
    vague = re.compile(r"_(nobody|somebody|anybody|whoever)(_|s_|$)")
    faults = [
        f"{file.relative_to(REPOSITORY)}:{node.lineno}: {node.name}"
        for file in sorted((REPOSITORY / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if len(node.name) > LONGEST_TEST_NAME or vague.search(node.name)
    ]
    assert not faults, "\n".join(faults)


def test_no_folder_grows_too_wide() -> None:
    modules = Counter(folder(module) for module in sources() if folder(module) != module)
    wide = {name: count for name, count in modules.items() if count > WIDE.get(name, WIDEST)}
    assert not wide


def test_folders_import_one_way() -> None:
    edges: dict[str, set[str]] = {}
    for module in sources():
        for target in imported(module):
            if folder(target) != folder(module):
                edges.setdefault(folder(module), set()).add(folder(target))
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail(f"folders import each other: {' <- '.join(error.args[1])}")


#: Names of the flags and statements with which a database is opened for writing, or written.
WRITING = re.compile(r"SQLITE_OPEN_(READWRITE|CREATE)|BEGIN IMMEDIATE|BEGIN EXCLUSIVE")


def test_no_code_that_the_query_service_reaches_opens_a_database_for_writing() -> None:
    """The names of modules are in the contract of imports; this looks at their work."""
    reached, waiting = set[str](), [module for module in sources() if module.startswith("memory.service")]
    while waiting:
        if (module := waiting.pop()) not in reached:
            reached.add(module)
            waiting += imported(module)
    assert "memory.embedding.cache_reader" in reached
    assert not [module for module in sorted(reached) if WRITING.search(sources()[module])]
    opened = [
        f"{module}:{node.lineno}"
        for module in sorted(reached)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"apsw.Connection", "sqlite3.connect"}
        if not any(word.arg in {"flags", "uri"} for word in node.keywords)
    ]
    assert opened == []


#: Names that send requests.
CLIENTS = re.compile(
    r"(openai|voyageai|boto3|botocore|httpx2?|httpcore2?|requests|urllib3|aiohttp|huggingface_hub|grpc|pycurl|websockets"
    r"|urllib\.request|http\.client|ftplib|smtplib|mcp\.client|opentelemetry\.exporter"
    r"|socket\.(socket|create_connection)|(asyncio|anyio)\.(open_\w*connection|connect_\w+))\b"
)

#: Modules outside of the providers that use one all the same, and the reason.
SENDERS = {
    "recalld.client.connection": "the client has no dependency, and leads to the service that its caller names",
    "recalld.up.sd_notify": "a datagram to systemd on this machine",
    "recalld.up.lifecycle": "spans, without texts, to the operator's host",
    "memory.http.server": "the socket that listens",
    "memory.service.run": "the same one",
    "producers.remote.door_client": "redacted documents, by the guarded transport, to the fleet that the user names",
}

#: Modules of the providers that make an HTTP client, and the reason.
MAKERS = {
    "memory.embedding.providers.transport": "the guarded transport itself",
    "memory.embedding.providers.model_catalogue": "`model pull` follows its hub's redirects, and its files are pinned",
}


def test_every_request_leaves_by_the_guarded_transport() -> None:
    providers = "memory.embedding.providers."
    users = {module for module in sources() if any(map(CLIENTS.match, names_in(module)))}
    assert {module for module in users if not module.startswith(providers)} == set(SENDERS)
    calls = {
        module: {ast.unparse(node.func) for node in ast.walk(tree(module)) if isinstance(node, ast.Call)}
        for module in users
    }
    assert {module for module in users if calls[module] & {"httpx2.Client", "httpcore2.ConnectionPool"}} == set(MAKERS)


@pytest.mark.parametrize(
    "text", ["import httpx as h", "from http import client", "import urllib.request", "LazyModule('openai')"]
)
def test_a_client_is_recognised_however_it_is_imported(text: str) -> None:
    assert any(map(CLIENTS.match, names_of(ast.parse(text))))
    assert not any(
        map(CLIENTS.match, names_of(ast.parse("from http import HTTPStatus; from urllib.parse import quote")))
    )


def test_every_setting_is_in_the_code_and_in_a_test_from_outside() -> None:
    code = "\n".join(text for name, text in sources().items() if not name.startswith("schemas.settings"))
    folders = ("integration", "acceptance", "chaos", "peer")
    tests = "\n".join(path.read_text() for name in folders for path in Path("tests", name).rglob("*.py"))
    for key in {**top_level_keys(), **agent_keys()}:
        name = key.rpartition(".")[2]
        assert re.search(rf"\.{name}_?\b", code), f"no code reads {key}"
        assert re.search(rf"(\b|__|\\n){name}\b", tests, re.IGNORECASE), f"no test from outside sets {key}"


def names_in(module: str) -> set[str]:
    return names_of(tree(module))


def names_of(module: ast.Module) -> set[str]:
    """Return the dotted names that a module imports, or uses of its imports, texts included."""
    names: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            used.add(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("LazyModule", "import_module", "__import__")
        ):
            names |= {str(text.value) for text in node.args if isinstance(text, ast.Constant)}
    return names | {name for name in used if name.partition(".")[0] in names}


def imported(module: str) -> set[str]:
    """Return the product's modules that a module imports."""
    names = []
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {module for name in names if (module := known(name))}


@cache
def known(name: str) -> str:
    """Return the module that a dotted name is, or lies in; empty for one that is not the product's."""
    return name if not name or name in sources() else known(name.rpartition(".")[0])
