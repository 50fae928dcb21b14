"""``/v1/sessions``: nginx's workers as they are heard."""

import logging

import falcon

from control.admission import Admission
from control.api import shapes, wire
from control.api.caller import about_to_change
from control.api.problems import problem

log = logging.getLogger("weir.admin")


class Sessions:
    """``/v1/sessions`` and ``/v1/sessions/{id}``; an id has slashes."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """All, or those of ``node``."""
        now = self._admission.clock()
        node = req.get_param("node")
        sessions = [
            shapes.Session(s.id, len(s.leases), round(max(0.0, s.silent_for(now)), 3), s.config)
            for s in self._admission.sessions()
            if node is None or s.node == node
        ]
        resp.data = wire.encode(shapes.Sessions(sessions))

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, session: str) -> None:
        """The worker is dead: its leases end now, and not when it has been silent for long."""
        known = self._admission.session(session)
        if known is not None:
            about_to_change(req, {"leases": len(known.leases)}, {"leases": 0})
        ended = self._admission.end_session(session)
        if ended is None:
            raise problem(falcon.HTTP_404, "session_not_found", f"no session {session[:200]!r}")
        log.warning("session_ended id=%s leases=%d", session, len(ended))
        resp.data = wire.encode(shapes.EndedSession([lease.id for lease in ended]))
