"""``/v1/leases`` for people: what is live, forced releases, cuts."""

import logging
import time
from collections.abc import Sequence

import falcon

from control.admission import Admission
from control.api import shapes, wire
from control.api.caller import about_to_change
from control.api.lease_page import Choice, Key, page, read_cursor
from control.api.params import boolean, integer, invalid, one_of
from control.api.problems import problem
from control.core.decision import ReleaseOutcome
from control.core.lease import Lease, LeaseState
from control.core.verdict import Verdict, Witness
from control.progress import Progress

DEFAULT_PAGE = 100
MAX_PAGE = 1_000
MAX_IDS = 100
SORTS = ("-age", "age")
"""Oldest first, youngest first."""
LIVE = (LeaseState.ACTIVE.value, LeaseState.DRAINING.value)

log = logging.getLogger("weir.admin")


class Leases:
    """``/v1/leases`` and ``/v1/leases/{id}``"""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Pages of live leases, oldest first; ``cursor`` is the ``next`` of the page before."""
        leases, following = page(
            self._asked_for(req),
            Choice(
                pool=req.get_param("pool"),
                backend=req.get_param("backend"),
                tenant=req.get_param("tenant"),
                session=req.get_param("session"),
                scene=req.get_param("scene"),
                state=_state(req),
            ),
            integer(req, "limit", DEFAULT_PAGE, at_least=1, at_most=MAX_PAGE),
            _cursor(req),
            youngest_first=one_of(req, "sort", SORTS, "-age") == "age",
        )
        now = self._admission.clock()
        shown = [_lease(lease, self._admission.progress(lease.id), now) for lease in leases]
        resp.data = wire.encode(shapes.Leases(shown, following))

    def _asked_for(self, req: falcon.Request) -> Sequence[Lease]:
        """All, or those of ``ids`` that live."""
        asked = req.get_param("ids")
        if asked is None:
            return self._admission.leases()
        ids = set(asked.split(","))
        if len(ids) > MAX_IDS:
            raise invalid("ids", f"{len(ids)} of them", f"at most {MAX_IDS} at once")
        found = map(self._admission.lease, ids)
        return [lease for lease in found if lease is not None]

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        lease = self._admission.lease(lease_id)
        if lease is None:
            raise _no_lease(lease_id)
        progress = self._admission.progress(lease_id)
        resp.data = wire.encode(_lease(lease, progress, self._admission.clock()))

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        """Force the release, or with ``cut`` have the stream ended, and the lease with it.
        Repeating it changes nothing and says so."""
        cuts = boolean(req, "cut")
        lease = self._admission.lease(lease_id)
        if lease is not None and lease.state is LeaseState.ACTIVE:
            about_to_change(req, _held(lease), {"ends": "with its stream" if cuts else "now"})
        if cuts:
            outcome = self._admission.cut(lease_id)
        else:
            outcome = self._admission.release(lease_id, Verdict.KILLED, Witness.ADMIN)
        if outcome is ReleaseOutcome.UNKNOWN:
            raise _no_lease(lease_id)
        log.info("lease_ended_by_admin id=%s outcome=%s", lease_id, outcome)
        if outcome is ReleaseOutcome.CUTTING:
            resp.status = falcon.HTTP_202
        resp.data = wire.encode(shapes.Released(outcome))


def _lease(lease: Lease, progress: Progress | None, now: float) -> shapes.Lease:
    age = now - lease.granted_at
    return shapes.Lease(
        id=lease.id,
        pool=lease.pool,
        backend=lease.backend,
        tenant=lease.tenant,
        scene=lease.scene,
        tokens=lease.tokens,
        session=lease.session,
        state=lease.state,
        verdict=lease.verdict,
        witness=lease.witness,
        granted_at=round(time.time() - age, 3),
        age_s=round(age, 3),
        progress=progress and _progress(progress, now),
    )


def _progress(progress: Progress, now: float) -> shapes.Progress:
    _, passed, events, idle_s = progress.report
    return shapes.Progress(
        bytes=passed,
        events=events if passed else 0,
        idle_s=round(idle_s, 3),
        phase=progress.phase,
        reported_s=round(now - progress.at, 3),
    )


def _held(lease: Lease) -> dict[str, object]:
    """What a lease holds, for the audit log."""
    return {
        "state": lease.state,
        "pool": lease.pool,
        "backend": lease.backend,
        "tokens": lease.tokens,
        "session": lease.session,
    }


def _no_lease(lease_id: str) -> falcon.HTTPError:
    return problem(
        falcon.HTTP_404,
        "lease_not_found",
        f"no live lease {lease_id[:64]!r}; ended leases are not kept",
    )


def _state(req: falcon.Request) -> LeaseState | None:
    asked = one_of(req, "state", LIVE, "")
    return LeaseState(asked) if asked else None


def _cursor(req: falcon.Request) -> Key | None:
    asked = req.get_param("cursor")
    if asked is None:
        return None
    key = read_cursor(asked)
    if key is None:
        raise invalid("cursor", asked, "the next of the page before")
    return key
