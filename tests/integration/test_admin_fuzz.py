"""schemathesis over the whole admin plane of a running service: no answer that the document has
not, nothing that fits refused, nothing that does not fit taken, and no 5xx."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from tests.harness.admission import ROUTE, Service
from tests.harness.openapi import openapi

EXAMPLES = 12
TOKEN = "fuzz-token-0123456789"
ENDLESS = "/v1/events"
"""Its answers have no end; its own tests read them."""
LEASES = [f"fuzz-{n}" for n in range(100)]
THERE = {
    "pool": ["default"],
    "backend": ["gpu-0", "gpu-1"],
    "lease_id": LEASES,
    "session": ["node-1/1/1", "node-1/2/1"],
    "node": ["node-1"],
}
EXPECTED = {"positive_data_acceptance": {"expected-statuses": ["2xx", "304", "404", "412"]}}
"""412: an If-Match of other settings."""


def with_names() -> dict[str, Any]:
    """The document where a path names what is there; else almost all of them are 404."""
    named = copy.deepcopy(openapi())
    for path in named["paths"].values():
        for operation in path.values():
            for parameter in operation["parameters"]:
                if parameter["in"] == "path" and parameter["name"] in THERE:
                    parameter["schema"] = {"enum": THERE[parameter["name"]]}
    return named


def fuzzed(document: dict[str, Any]) -> Any:
    config = schemathesis.Config.from_dict({"checks": EXPECTED})
    return schemathesis.openapi.from_dict(document, config=config).exclude(path=ENDLESS)


briefly = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "token").write_text(TOKEN)
    tokens = [{"name": "fuzz", "file": str(folder / "token")}]
    service = Service(folder, admin={"tokens": tokens})
    ops = [{"op": "acquire", "id": i, "route": ROUTE, "tokens": 10} for i in LEASES]
    service.batch("node-1/1/1", *ops[:50])
    service.batch("node-1/2/1", *ops[50:])
    service.gateway("PUT", "/v1/nodes/node-1", {"agent": {"pid": 1, "started": 1.5}})
    yield service
    changes = [line["outcome"] for line in service.audit()]
    assert {"done", "invalid_change"} <= set(changes), "it has reached what it should"
    service.stop()


def ask(case: schemathesis.Case, service: Service) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    case.call_and_validate(base_url=service.url, headers=headers, timeout=10)


@fuzzed(openapi()).parametrize()
@briefly
def test_every_operation_answers_as_it_is_documented(
    case: schemathesis.Case, service: Service
) -> None:
    ask(case, service)


@fuzzed(with_names()).include(path_regex=r"\{").parametrize()
@briefly
def test_so_it_does_for_what_is_there(case: schemathesis.Case, service: Service) -> None:
    ask(case, service)
