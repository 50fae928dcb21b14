"""Whether an answer of the admin plane is one that its OpenAPI document has."""

import json
import re
import time
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import jsonschema
import requests

from control.admission import Admission
from control.api.admin_routes import Parts, admin_routes
from control.api.openapi import document
from control.api.routes import Route
from control.audit import AuditLog
from control.chronicle.subscribers import Subscribers
from control.config import Loaded
from control.config.load import parse
from control.core.pool import Backend, Pool
from control.metrics import ServiceMetrics
from control.stores import MemoryStore
from control.wiring import build_estimate

GATE_STATUSES = {404, 405}
"""Of paths and methods that are in no document."""


@cache
def routes() -> tuple[Route, ...]:
    """The table of the admin plane, over a ledger of its own."""
    backend = {"name": "gpu-0", "url": "http://127.0.0.1:9"}
    config = parse({"pools": {"default": {"backends": [backend]}}}, "test")
    pools = [Pool("default", {"gpu-0": Backend("gpu-0", backend["url"], 25, 80_000)})]
    admission = Admission(MemoryStore(pools), {}, build_estimate(config))
    loaded = Loaded(config, (), Path("weir.yml"), time.time(), time.time())
    parts = Parts(
        admission,
        Subscribers(admission.events),
        ServiceMetrics(admission),
        loaded,
        AuditLog(config.audit_log),
    )
    return admin_routes(parts)


@cache
def openapi() -> dict[str, Any]:
    """The document as it is served."""
    return dict(json.loads(json.dumps(document(routes()))))


def find_operation(method: str, path: str) -> dict[str, Any] | None:
    """What the document says of a request."""
    plain = unquote(urlsplit(path).path)
    for template, methods in openapi()["paths"].items():
        pattern = re.sub(r"\\\{(\w+)\\\}", lambda m: ".+" if m[1] == "session" else "[^/]+",
                         re.escape(template))  # fmt: skip
        if re.fullmatch(pattern, plain) and method.lower() in methods:
            return dict(methods[method.lower()])
    return None


def check_answer(method: str, path: str, response: requests.Response) -> None:
    """Its status, media type, headers and body are documented."""
    operation = find_operation(method, path)
    if operation is None:
        assert response.status_code in GATE_STATUSES | {400, 401, 421, 429}, response.text
        return
    told = f"{method} {path}: {response.status_code} {response.text[:300]}"
    documented = operation["responses"].get(str(response.status_code))
    assert documented is not None, told
    media = response.headers.get("Content-Type", "").partition(";")[0]
    assert media in documented["content"], told
    for name in documented.get("headers", {}):
        assert name in response.headers, (told, name)
    if media.endswith("json"):
        schema = {**documented["content"][media]["schema"], "components": openapi()["components"]}
        jsonschema.Draft202012Validator(schema).validate(response.json())
