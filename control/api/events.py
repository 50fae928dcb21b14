"""``GET /v1/events``: what happens, as it happens."""

import falcon

from control.admission import Admission
from control.api.params import boolean, invalid
from control.api.problems import problem
from control.chronicle.events import KINDS, Wanted
from control.chronicle.subscribers import Subscribers, TooMany

MAX_ID = 1 << 62


class Events:
    """An event stream; see :mod:`control.chronicle.subscribers` for how it is paced."""

    def __init__(self, admission: Admission, subscribers: Subscribers) -> None:
        self._admission = admission
        self._subscribers = subscribers

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """From now on, or from after ``Last-Event-ID`` (or ``last_event_id``, which a browser's
        own header outdoes: it is newer)."""
        wanted = Wanted(_kinds(req), self._pool(req), boolean(req, "thin"))
        try:
            subscription = self._subscribers.subscribe(wanted, _last_event_id(req))
        except TooMany as exc:
            raise problem(
                falcon.HTTP_503,
                "too_many_subscribers",
                f"{len(self._subscribers)} follow the events already: close one, or come later",
                {"Retry-After": "10"},
            ) from exc
        resp.content_type = "text/event-stream; charset=utf-8"
        resp.cache_control = ["no-store"]
        resp.set_header("X-Accel-Buffering", "no")
        resp.stream = subscription

    def _pool(self, req: falcon.Request) -> str | None:
        asked = req.get_param("pool")
        known = [pool.name for pool in self._admission.pools()]
        if asked is not None and asked not in known:
            raise invalid("pool", asked, f"one of {', '.join(known)}")
        return asked


def _kinds(req: falcon.Request) -> frozenset[str] | None:
    asked = req.get_param("kinds")
    if asked is None:
        return None
    kinds = asked.split(",")
    for kind in kinds:
        if kind not in KINDS:
            raise invalid("kinds", kind, f"of {', '.join(KINDS)}")
    return frozenset(kinds)


def _last_event_id(req: falcon.Request) -> int | None:
    asked = req.get_header("Last-Event-ID") or req.get_param("last_event_id")
    if asked is None:
        return None
    number = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 20 else MAX_ID
    if number >= MAX_ID:
        raise invalid("last_event_id", asked, "an id that an event had")
    return number
