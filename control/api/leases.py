"""``/v1/leases`` for people: what is live, forced releases, cuts."""

import logging
import time

import falcon

from control.admission import Admission
from control.api import wire
from control.api.params import boolean, integer
from control.api.problems import problem
from control.core.decision import ReleaseOutcome
from control.core.lease import Lease, LeaseState
from control.core.verdict import Verdict, Witness

DEFAULT_PAGE = 100
MAX_PAGE = 1_000

log = logging.getLogger("weir.admin")


class Leases:
    """``/v1/leases`` and ``/v1/leases/{id}``"""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Pages of live leases, oldest first; ``cursor`` is the ``next`` of the page before."""
        pool = req.get_param("pool")
        tenant = req.get_param("tenant")
        state = _state(req)
        limit = integer(req, "limit", DEFAULT_PAGE, at_least=1, at_most=MAX_PAGE)
        after = integer(req, "cursor", 0, at_least=0, at_most=1 << 62)
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
                "leases": [_lease(lease, self._admission) for lease in page],
                "next": str(page[-1].grant) if more else None,
            }
        )

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        lease = self._admission.lease(lease_id)
        if lease is None:
            raise _no_lease(lease_id)
        resp.data = wire.encode(_lease(lease, self._admission))

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        """Force the release, or with ``cut`` have the stream ended, and the lease with it.
        Repeating it changes nothing and says so."""
        if boolean(req, "cut"):
            outcome = self._admission.cut(lease_id)
        else:
            outcome = self._admission.release(lease_id, Verdict.KILLED, Witness.ADMIN)
        if outcome is ReleaseOutcome.UNKNOWN:
            raise _no_lease(lease_id)
        log.info("lease_ended_by_admin id=%s outcome=%s", lease_id, outcome)
        if outcome is ReleaseOutcome.CUTTING:
            resp.status = falcon.HTTP_202
        resp.data = wire.encode(wire.ReleasedResult(outcome))


def _lease(lease: Lease, admission: Admission) -> dict[str, object]:
    now = admission.clock()
    age = now - lease.granted_at
    progress = admission.progress(lease.id)
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
        "progress": progress and progress.shown(now),
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
