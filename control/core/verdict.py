"""How a lease ended, and who said so."""

from enum import StrEnum


class Verdict(StrEnum):
    """The one outcome of a stream."""

    COMPLETED = "completed"
    CLIENT_ABORT = "client_abort"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TRUNCATED = "upstream_truncated"
    TIMEOUT = "timeout"
    KILLED = "killed"
    LOST = "lost"

    @property
    def drains(self) -> bool:
        """True where the engine may still hold the stream's KV blocks for a step or two.

        An engine that finished, or that itself reported the failure, has freed them before it
        said so. All other ends reach it as a closed connection, and room given back at once is
        how a GPU gets overrun (mission 003, section 2.2).
        """
        return self not in _FREED_BY_THE_ENGINE


_FREED_BY_THE_ENGINE = frozenset({Verdict.COMPLETED, Verdict.UPSTREAM_ERROR})


class Phase(StrEnum):
    """How far a stream had come when its client left."""

    ASKING = "asking"
    WAITING = "waiting"
    PREFILL = "prefill"
    STREAM = "stream"


class Witness(StrEnum):
    """Who reported the end. The first one counts; the others change nothing."""

    LUA = "lua"
    LOG = "log"
    SESSION = "session"
    ADMIN = "admin"
    GATEWAY = "gateway"
    """A gateway that is not ours, over ``/v1/leases``."""
