"""``GET /v1/history``: the last hour by the minute."""

import falcon

from control.admission import Admission
from control.api import wire
from control.api.params import integer
from control.chronicle.history import SLOTS


class History:
    """Kept in memory, since the service began."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """``minutes`` whole ones at most, and the one that goes on."""
        minutes = integer(req, "minutes", SLOTS, at_least=1, at_most=SLOTS)
        resp.data = wire.encode(self._admission.history(minutes))
