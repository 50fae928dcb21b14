"""What gateways talk to: batches from our own nginx, single leases from others."""

import logging
from collections.abc import Callable, Sequence
from time import perf_counter

import falcon

from control.admission import Admission, Ask, UnknownRoute
from control.api import wire
from control.api.body import read_body
from control.api.problems import problem
from control.core.decision import Granted, Refused
from control.core.verdict import Verdict, Witness

log = logging.getLogger("weir.data")


class DataPlane:
    """Falcon responders over one :class:`Admission`.

    ``urls`` maps (pool, backend) to an address; ``observe`` takes the seconds that a batch with
    an acquire took, ``observe_abort`` those from a client's leaving to its lease's end.
    """

    def __init__(
        self,
        admission: Admission,
        urls: dict[tuple[str, str], str],
        observe: Callable[[float], None],
        observe_abort: Callable[[float], None],
    ) -> None:
        self._admission = admission
        self._urls = urls
        self._observe = observe
        self._observe_abort = observe_abort

    def on_post_batch(self, req: falcon.Request, resp: falcon.Response) -> None:
        """``POST /v1/admission``"""
        began = perf_counter()
        try:
            session, ops, dropped, progress = wire.read_batch(read_body(req))
        except wire.WireError as exc:
            raise problem(falcon.HTTP_400, "invalid_batch", str(exc)) from exc
        if dropped:
            self._admission.dropped += dropped
            log.warning("releases_dropped session=%s count=%d", session, dropped)
        requests = [wire.to_request(session, op) for op in ops if not isinstance(op, wire.OpError)]
        results, sync, cuts = self._admission.batch(session, requests, progress)
        answers = [wire.to_answer(result, self._urls) for result in results]
        if len(answers) < len(ops):
            left = iter(answers)
            answers = [op if isinstance(op, wire.OpError) else next(left) for op in ops]
        resp.data = wire.encode(wire.BatchResult(answers, sync, cuts))
        self._measure(ops, perf_counter() - began)

    def _measure(self, ops: Sequence[wire.Op | wire.OpError], took: float) -> None:
        decided = False
        for op in ops:
            if isinstance(op, wire.AcquireOp):
                decided = True
            elif isinstance(op, wire.ReleaseOp) and self._is_new_abort(op):
                self._observe_abort(min(op.delay_ms, wire.MAX_DELAY_MS) / 1_000 + took)
        if decided:
            self._observe(took)

    def _is_new_abort(self, op: wire.ReleaseOp) -> bool:
        # The log says it as well, and knows neither when nor how far the stream had come.
        is_told = op.verdict is Verdict.CLIENT_ABORT and op.witness is Witness.LUA
        return is_told and self._admission.note_abort(op.id, op.phase)

    def on_post_lease(self, req: falcon.Request, resp: falcon.Response) -> None:
        """``POST /v1/leases``"""
        try:
            asked = wire.read_lease_request(read_body(req))
        except wire.WireError as exc:
            raise problem(falcon.HTTP_400, "invalid_request", str(exc)) from exc
        result = self._admission.acquire(
            asked.session,
            Ask(asked.id, asked.route, asked.scene, asked.bytes, asked.tokens, asked.trace),
        )
        answer = wire.to_answer(result, self._urls)
        match result:
            case Granted(_, repeated):
                resp.status = falcon.HTTP_200 if repeated else falcon.HTTP_201
                resp.data = wire.encode(answer)
            case Refused() as refused:
                raise refusal(refused)
            case UnknownRoute():
                assert isinstance(answer, wire.OpError)
                raise problem(falcon.HTTP_400, "unknown_route", answer.message)
            case _:
                raise problem(
                    falcon.HTTP_409,
                    "lease_ended",
                    f"lease {asked.id} has been released; ask with a new id",
                )

    def on_delete_lease(self, req: falcon.Request, resp: falcon.Response, lease_id: str) -> None:
        """``DELETE /v1/leases/{id}?verdict=``: idempotent."""
        if not wire.is_lease_id(lease_id):  # it would be remembered, and kept
            raise problem(
                falcon.HTTP_400,
                "invalid_id",
                f"id: {lease_id[:64]!r} is no lease's: those have 1 to 128 letters, digits, _.:-",
            )
        asked = req.get_param("verdict", default=Verdict.COMPLETED.value)
        try:
            verdict = Verdict(asked)
        except ValueError as exc:
            raise problem(
                falcon.HTTP_400,
                "invalid_verdict",
                f"verdict: {asked[:64]!r} is not one of {', '.join(Verdict)}",
            ) from exc
        outcome = self._admission.release(lease_id, verdict, Witness.GATEWAY)
        resp.data = wire.encode(wire.ReleasedResult(outcome))


def refusal(refused: Refused) -> falcon.HTTPError:
    """A refusal as a gateway that is not ours gets it."""
    told = wire.to_refusal(refused)
    seconds = -(-told.retry_after_ms // 1_000)
    headers = {"Retry-After": str(seconds)} if told.retryable else {}
    return problem(
        falcon.code_to_http_status(told.status),
        told.reason,
        f"pool {told.pool}: {told.in_use} of {told.limit} in use, {told.requested} asked for",
        headers,
        pool=told.pool,
        limit=told.limit,
        in_use=told.in_use,
        requested=told.requested,
        retry_after_ms=told.retry_after_ms,
        retryable=told.retryable,
    )
