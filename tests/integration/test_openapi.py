"""Agreement of the service's answers with its `/openapi.json`, for any request (schemathesis)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from schemas.settings import Settings
from tests.serving import running, search
from tests.waiting import wait_until
from tests.written_index import write_index

if TYPE_CHECKING:  # schemathesis takes seconds to import, in each process that collects this
    from schemathesis import Case
    from schemathesis.schemas import BaseSchema

#: Of one operation.
FEW, MANY = 8, 400

#: Undocumented statuses, content types, headers and fields; a 5xx; a request that is as described and yet refused.
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "positive_data_acceptance",
]

OPERATIONS = [
    "GET /healthz",
    "GET /metrics",
    "GET /readyz",
    "GET /v1/context",
    "GET /v1/days",
    "GET /v1/dead-letters",
    "GET /v1/documents",
    "GET /v1/queue",
    "GET /v1/status",
    "GET /v1/timeline",
    "GET /v1/tools",
    "GET /v1/turns",
    "POST /v1/context/flush",
    "POST /v1/context/prompt",
    "POST /v1/context/prune",
    "POST /v1/get",
    "POST /v1/search",
    "POST /v1/session",
    "POST /v1/session/link",
    "POST /v1/terms",
    "POST /v1/tools",
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSchema]:
    """The description of a service of one agent, so that a request need not name it."""
    import schemathesis

    folder = tmp_path_factory.mktemp("openapi")
    workspace = folder / "workspace"
    (workspace / "memory").mkdir(parents=True)
    (workspace / "memory" / "2026-03-04.md").write_text("The gateway restarted. 数据库 is fine.\n", "utf-8")
    agent = {"id": "main", "workspace": workspace, "provider": "stub"}
    house = Settings.model_validate({"home": folder / "home", "agents": [agent]})
    write_index(house).close()
    with running(house) as client:
        wait_until(lambda: search(client, "gateway")["mode"] == "hybrid")
        yield schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")


def test_every_operation_is_tried(api: BaseSchema):
    assert sorted(found.ok().label for found in api.get_all_operations()) == OPERATIONS


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_comes_back_is_as_described(api: BaseSchema, name: str):
    _try(api, name, examples=FEW)


@pytest.mark.long
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_comes_back_is_as_described_whatever_is_asked(api: BaseSchema, name: str):
    _try(api, name, examples=MANY)


def _try(api: BaseSchema, name: str, *, examples: int) -> None:
    from schemathesis import GenerationMode, checks

    method, path = name.split()
    operation = api[path][method]
    requests = operation.as_strategy() | operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=requests)
    def asked(case: Case) -> None:
        case.call_and_validate(checks=[getattr(checks, check) for check in CHECKS])

    asked()
