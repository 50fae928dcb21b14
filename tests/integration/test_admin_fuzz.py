"""schemathesis over the whole admin plane of a running service: no answer that the document has
not, nothing that fits refused, nothing that does not fit taken, and no 5xx."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

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


def operations(document: dict[str, Any], within: str = "") -> list[Any]:
    """Each operation of the document as a parameter, for what fits it and for what does not."""
    config = schemathesis.Config.from_dict({"checks": EXPECTED})
    schema = schemathesis.openapi.from_dict(document, config=config)
    found = [each.ok() for each in schema.exclude(path=ENDLESS).get_all_operations()]
    return [
        pytest.param(each, mode, id=f"{each.method.upper()} {each.path} {mode.value}")
        for each in found
        for mode in GenerationMode
        if within in each.path and (mode is GenerationMode.POSITIVE or any(each.iter_parameters()))
    ]


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
    service.stop()
    assert {"done", "invalid_change"} <= set(changes), "it has reached what it should"


def ask(operation: Any, mode: GenerationMode, service: Service) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}

    @briefly
    @given(operation.as_strategy(generation_mode=mode))
    def each(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=service.url, headers=headers, timeout=10)

    each()


@pytest.mark.parametrize(("operation", "mode"), operations(openapi()))
def test_every_operation_answers_as_it_is_documented(
    operation: Any, mode: GenerationMode, service: Service
) -> None:
    ask(operation, mode, service)


@pytest.mark.parametrize(("operation", "mode"), operations(with_names(), within="{"))
def test_so_it_does_for_what_is_there(
    operation: Any, mode: GenerationMode, service: Service
) -> None:
    ask(operation, mode, service)
