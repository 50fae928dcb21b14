"""The shape of ``weir.yml``. Every key, its default, and where the default comes from.

Defaults without a source here are contract.md's, section 2. ``docs/configuration.md`` says the
same to people, and a test compares the two.
"""

import hashlib
import json
import re
import socket
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    model_validator,
)

from control.config.units import Address, Duration, Listen, Size, size_bytes

MAX_TOKENS = 1_000_000_000
MAX_WORKERS = 512
MAX_BODY = 1 << 40
"""Also the most that the service takes for a request's bytes."""
_HEADER = re.compile(r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}\Z")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_PATH = re.compile(r"^/[A-Za-z0-9_./~-]{0,255}\Z")
_UNIX_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\Z")


def _name(value: str) -> str:
    if not _NAME.match(value):
        raise ValueError("must be 1 to 64 letters, digits, _ or -, and begin with no sign")
    return value


def _header(value: str) -> str:
    if not _HEADER.match(value):
        raise ValueError("must be a header's name: letters, digits and -, at most 64")
    return value


def _path(value: str) -> str:
    if not _PATH.match(value) or "//" in value or "/." in value:
        raise ValueError("must be a plain path like /v1/chat/completions")
    if value.startswith("/_weir"):
        raise ValueError("paths under /_weir are Weir's own: choose another")
    return value


def _engine_url(value: str) -> str:
    return _server_url(
        value, "http://127.0.0.1:8000", "no path, query or user: the client's own path is passed on"
    )


def _service_url(value: str) -> str:
    return _server_url(value, "https://10.0.0.5:8443", "no path, query or user")


def _server_url(value: str, example: str, bare: str) -> str:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as exc:
        raise ValueError(f"must be a URL like {example}") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"must be a URL like {example}")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise ValueError(f"must have {bare}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'https' else 80)}"


def _unix_name(value: str) -> str:
    if not _UNIX_NAME.match(value):
        raise ValueError("must be the name of a user of this machine")
    return value


def _workers(value: object) -> object:
    if value == "auto" or (type(value) is int and 1 <= value <= MAX_WORKERS):
        return value
    raise ValueError(f"must be auto, or a whole number from 1 to {MAX_WORKERS}")


def _memory_limit(value: object) -> object:
    try:
        size = value if value == "auto" else size_bytes(value)
    except ValueError as exc:
        raise ValueError("must be auto, or a size like 8g") from exc
    if size == 0:
        raise ValueError("must be auto, or a size like 8g")
    return size


def _webhook(value: str) -> str:
    try:
        parts = urlsplit(value)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ValueError("must be a URL like https://alerts.example.org/hook")
    return value


def _collector(value: str) -> str:
    try:
        parts = urlsplit(value)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or parts.query or parts.fragment or parts.username:
        raise ValueError("must be a URL like http://127.0.0.1:4318; /v1/traces is added to it")
    return value


Name = Annotated[str, AfterValidator(_name)]
Header = Annotated[str, AfterValidator(_header)]
Tokens = Annotated[int, Field(strict=True, ge=1, le=MAX_TOKENS)]
PositiveDuration = Annotated[Duration, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class Section(BaseModel):
    """A mapping of ``weir.yml``: frozen, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Secret(Section):
    """A secret from the environment or from a file: exactly one of them."""

    env: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    file: Path | None = None


class AdminToken(Secret):
    """A bearer token of the admin plane."""

    name: Name
    role: Literal["read", "operate", "admin"] = "admin"


class ServiceTls(Section):
    """TLS of one of the service's listeners. ``client_ca``: clients must show a certificate of
    this authority."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class Admin(Section):
    """The admin plane."""

    listen: Listen = Address("127.0.0.1", 8081)
    tokens: tuple[AdminToken, ...] = ()
    tls: ServiceTls | None = None


class NodeToken(Secret):
    """A bearer token of a node apart from the service."""

    name: Name


class AdmissionSection(Section):
    """The admission service. ``budget`` is how long nginx waits for a decision.

    ``listen``, ``tls`` and ``tokens`` are for the service, to be reached by nodes elsewhere;
    ``url`` and what follows are for such a node: where the service is, and how it verifies the
    service and identifies itself.
    """

    store: str = "memory"
    workers: Annotated[int, Field(strict=True, ge=1)] = 1
    budget: PositiveDuration = 0.25
    listen: Listen | None = None
    tls: ServiceTls | None = None
    tokens: tuple[NodeToken, ...] = ()
    url: Annotated[str, AfterValidator(_service_url)] | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    token: Secret | None = None


class Tls(Section):
    """A listener with TLS: HTTP/2 and HTTP/1.1, as the client likes."""

    listen: Listen
    certificate: Path
    key: Path


class Nginx(Section):
    """nginx itself. ``workers: auto`` is one a core, two at least."""

    workers: Annotated[int | Literal["auto"], BeforeValidator(_workers)] = "auto"
    binary: str = "auto"
    user: Annotated[str, AfterValidator(_unix_name)] | None = None
    max_body: Annotated[Size, Field(ge=1, le=MAX_BODY)] = 20 << 20
    slowest_upload: Size = 8 << 10
    upload_grace: PositiveDuration = 30.0
    shutdown_timeout: PositiveDuration = 600.0
    error_level: Literal["info", "notice", "warn", "error", "crit"] = "crit"
    access_log: StrictBool = True
    lua_release: StrictBool = True


class Scenes(Section):
    """Which output to expect of which request."""

    header: Header = "X-Medical-Scene"
    default: Name = "Record_Gen"
    expected_output: dict[Name, Tokens] = Field(
        default_factory=lambda: {"Record_Gen": 6_000, "QA": 1_000}, min_length=1
    )


class EstimateSection(Section):
    """``unknown_size``: a request without a length counts as ``nginx.max_body``, or is refused
    with 411."""

    tokens_per_char: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0.6
    unknown_size: Literal["max", "refuse"] = "max"


class Backend(Section):
    """One engine. ``keepalive`` must be shorter than the engine's own (5 s for vLLM's uvicorn
    and for llama.cpp)."""

    name: Name
    url: Annotated[str, AfterValidator(_engine_url)]
    max_streams: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 25
    max_tokens: Tokens = 80_000
    keepalive: PositiveDuration = 4.0


class Pool(Section):
    """Interchangeable backends, and what is common to their streams.

    ``stall``: a client that reads nothing for so long is cut. ``silence``: an engine that sends
    nothing for so long is given up; long, for a long prefill (mission 000, section 3).
    ``when_down``: what nginx does without an answer of the service; ``local`` admits up to
    ``local_share`` of each limit, a fleet's nodes together at most 1.
    """

    backends: Annotated[tuple[Backend, ...], Field(min_length=1)]
    session_ttl: PositiveDuration = 15.0
    drain: Annotated[Duration, Field(ge=0)] = 0.1
    stall: PositiveDuration = 30.0
    silence: PositiveDuration = 180.0
    connect: PositiveDuration = 2.0
    pass_over: PositiveDuration = 5.0
    when_down: Literal["refuse", "local"] = "refuse"
    local_share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    strip_headers: tuple[Header, ...] = ("X-Conversation-Id",)


class Route(Section):
    """A path that clients post to. ``stream``: whether its refusals are event-stream frames
    for a client that does not say what it accepts. ``heartbeat``: an engine that is silent for
    so long is covered up for with a comment."""

    path: Annotated[str, AfterValidator(_path)]
    pool: Name
    stream: StrictBool = True
    heartbeat: PositiveDuration | None = None


class RefusalSection(Section):
    """What a refused client reads (mission 000, section 4.3)."""

    message: Annotated[str, Field(min_length=1, max_length=1_000)] = (
        "【系统提示】当前并发较高，算力正在排队中，请稍候重试。"
        " The service is at capacity; please retry shortly."
    )


class Agent(Section):
    """The node's daemon. The memory's marks are shares of its limit (alarm: mission 000,
    section 5)."""

    memory_limit: Annotated[int | Literal["auto"], BeforeValidator(_memory_limit)] = "auto"
    memory_alarm: Share = 0.85
    memory_full: Share = 0.92
    memory_resume: Share = 0.80
    service_memory: Annotated[Size, Field(gt=0)] = 512 << 20
    webhook: Annotated[str, AfterValidator(_webhook)] | None = None


class Tracing(Section):
    """Where spans go: a collector that takes OTLP over HTTP."""

    endpoint: Annotated[str, AfterValidator(_collector)]


class Config(Section):
    """The whole file."""

    state: Path = Path("./var")
    node: Annotated[str, AfterValidator(_unix_name)] | None = None
    listen: Listen = Address("127.0.0.1", 8080)
    listen_h2c: Listen | None = None
    tls: Tls | None = None
    admin: Admin = Admin()
    admission: AdmissionSection = AdmissionSection()
    nginx: Nginx = Nginx()
    scenes: Scenes = Scenes()
    estimate: EstimateSection = EstimateSection()
    refusal: RefusalSection = RefusalSection()
    agent: Agent = Agent()
    tracing: Tracing | None = None
    pools: Annotated[dict[Name, Pool], Field(min_length=1)]
    routes: Annotated[tuple[Route, ...], Field(min_length=1)] = (
        Route(path="/api/v1/chat/stream", pool="default"),
        Route(path="/v1/chat/completions", pool="default"),
    )

    @model_validator(mode="after")
    def _absolute_state(self) -> Self:
        # Frozen for all others; a relative folder would move with the process.
        object.__setattr__(self, "state", self.state.absolute())
        return self

    @property
    def node_name(self) -> str:
        """``node``, or this machine's name as far as it can stand in an id."""
        return self.node or re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:32] or "node"

    @property
    def version(self) -> str:
        """12 hex digits that change with any setting. The file names secrets and holds none."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @property
    def is_apart(self) -> bool:
        """Whether the admission service is elsewhere, and none is to run here."""
        return self.admission.url is not None

    @property
    def admission_address(self) -> str:
        """Where this node's gateways and agent reach the service: ``unix:PATH`` or a URL."""
        return self.admission.url or f"unix:{self.admission_socket}"

    @property
    def admission_socket(self) -> Path:
        """The data plane's Unix socket."""
        return self.state / "run" / "admission.sock"

    @property
    def journal(self) -> Path:
        """The memory store's journal."""
        return self.state / "journal.db"

    @property
    def audit_log(self) -> Path:
        """Who changed what."""
        return self.state / "log" / "audit.log"
