"""What people and dashboards talk to: pools, leases, sessions, health, metrics."""

import time

import falcon
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from control.admission import Admission
from control.api import wire
from control.api.problems import problem
from control.core.decision import ReleaseOutcome
from control.core.lease import Lease, LeaseState
from control.core.pool import Pool, in_use
from control.core.verdict import Verdict, Witness

DEFAULT_PAGE = 100
MAX_PAGE = 1_000


class Pools:
    """``/v1/pools``"""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        pools = self._admission.pools()
        resp.data = wire.encode({"pools": [_pool(pool) for pool in pools]})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, name: str) -> None:
        pools = self._admission.pools()
        for pool in pools:
            if pool.name == name:
                resp.data = wire.encode(_pool(pool))
                return
        known = ", ".join(pool.name for pool in pools)
        raise problem(
            falcon.HTTP_404, "pool_not_found", f"no pool {name[:64]!r}; there are: {known}"
        )


class Leases:
    """``/v1/leases`` and ``/v1/leases/{id}``"""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Pages of live leases, oldest first; ``cursor`` is the ``next`` of the page before."""
        pool = req.get_param("pool")
        tenant = req.get_param("tenant")
        state = _state(req)
        limit = _integer(req, "limit", DEFAULT_PAGE, at_least=1, at_most=MAX_PAGE)
        after = _integer(req, "cursor", 0, at_least=0, at_most=1 << 62)
        chosen = [
            lease
            for lease in self._admission.leases()
            if lease.grant > after
            and (pool is None or lease.pool == pool)
            and (tenant is None or lease.tenant == tenant)
            and (state is None or lease.state is state)
        ]
        page = chosen[:limit]
        more = len(chosen) > limit
        resp.data = wire.encode(
            {
                "leases": [_lease(lease, self._admission.clock()) for lease in page],
                "next": str(page[-1].grant) if more else None,
            }
        )

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        lease = self._admission.lease(lease_id)
        if lease is None:
            raise _no_lease(lease_id)
        resp.data = wire.encode(_lease(lease, self._admission.clock()))

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        """Force the release. Repeating it changes nothing and says so."""
        outcome = self._admission.release(lease_id, Verdict.KILLED, Witness.ADMIN)
        if outcome is ReleaseOutcome.UNKNOWN:
            raise _no_lease(lease_id)
        resp.data = wire.encode(wire.ReleasedResult(outcome))


class Sessions:
    """``/v1/sessions``"""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        now = self._admission.clock()
        sessions = [
            {"id": s.id, "leases": len(s.leases), "silent_s": round(s.silent_for(now), 3)}
            for s in self._admission.sessions()
        ]
        resp.data = wire.encode({"sessions": sessions})


class Health:
    """``/healthz``: the process lives. ``/readyz``: it would decide."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get_live(self, req: falcon.Request, resp: falcon.Response) -> None:
        resp.data = b'{"status":"ok"}'

    def on_get_ready(self, req: falcon.Request, resp: falcon.Response) -> None:
        drift = self._admission.drift()
        if drift:
            raise problem(
                falcon.HTTP_503,
                "drift",
                f"granted - ended - live is {drift}: restart the service and report it",
            )
        resp.data = b'{"status":"ready"}'


class Metrics:
    """``/metrics``"""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        resp.content_type = CONTENT_TYPE_LATEST
        resp.data = generate_latest(self._registry)


def _pool(pool: Pool) -> dict[str, object]:
    streams, tokens = in_use(pool.backends.values())
    return {
        "name": pool.name,
        "waiting": 0,
        "streams": streams,
        "tokens": tokens,
        "backends": [
            {
                "name": backend.name,
                "url": backend.url,
                "state": backend.state,
                "max_streams": backend.max_streams,
                "max_tokens": backend.max_tokens,
                "streams": backend.streams,
                "tokens": backend.tokens,
                "draining": backend.draining,
            }
            for backend in pool.backends.values()
        ],
    }


def _lease(lease: Lease, now: float) -> dict[str, object]:
    age = now - lease.granted_at
    return {
        "id": lease.id,
        "pool": lease.pool,
        "backend": lease.backend,
        "tenant": lease.tenant,
        "scene": lease.scene,
        "tokens": lease.tokens,
        "session": lease.session,
        "state": lease.state,
        "verdict": lease.verdict,
        "witness": lease.witness,
        "granted_at": round(time.time() - age, 3),
        "age_s": round(age, 3),
    }


def _no_lease(lease_id: str) -> falcon.HTTPError:
    return problem(
        falcon.HTTP_404,
        "lease_not_found",
        f"no live lease {lease_id[:64]!r}; ended leases are not kept",
    )


def _state(req: falcon.Request) -> LeaseState | None:
    asked = req.get_param("state")
    if asked is None:
        return None
    live = (LeaseState.ACTIVE, LeaseState.DRAINING)
    if asked not in live:
        raise problem(
            falcon.HTTP_400,
            "invalid_state",
            f"state: {asked[:64]!r} is not one of {', '.join(live)}",
        )
    return LeaseState(asked)


def _integer(req: falcon.Request, name: str, default: int, at_least: int, at_most: int) -> int:
    asked = req.get_param(name)
    if asked is None:
        return default
    # isascii: isdigit alone admits digits that int() refuses.
    plain = asked.isascii() and asked.isdigit() and len(asked) < 20
    number = int(asked) if plain else -1
    if not at_least <= number <= at_most:
        raise problem(
            falcon.HTTP_400,
            f"invalid_{name}",
            f"{name}: {asked[:64]!r} must be a whole number from {at_least} to {at_most}",
        )
    return number
