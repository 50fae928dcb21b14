"""Bearer tokens of a plane: whose the one is that a request carries."""

import hashlib
import hmac
import logging
import math
from collections.abc import Callable, Sequence

import falcon

from control.api.problems import problem
from control.api.throttle import Throttle
from control.config import Token

log = logging.getLogger("weir.api")


class BearerTokens:
    """The tokens that stand at ``section`` of the file. An address that sends too many wrong
    ones has to wait."""

    def __init__(self, section: str, tokens: Sequence[Token], clock: Callable[[], float]) -> None:
        self._section = section
        self._tokens = [(_digest(token.value.encode()), token) for token in tokens]
        self._throttle = Throttle(clock)

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def owner(self, req: falcon.Request) -> Token:
        """The token that is shown, or 401, or 429."""
        address = req.remote_addr or ""
        scheme, _, given = (req.get_header("Authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise _unauthorized(f"send Authorization: Bearer with one of those in {self._section}")
        if wait := self._throttle.wait(address):
            raise problem(
                falcon.HTTP_429,
                "throttled",
                "too many wrong tokens came from this address: wait, then send the right one",
                {"Retry-After": str(math.ceil(wait))},
            )
        token = self._find(given)
        if token is None:
            self._throttle.failed(address)
            if self._throttle.wait(address):
                log.warning("tokens_throttled address=%s section=%s", address, self._section)
            raise _unauthorized(f"the token is none of those in {self._section}")
        self._throttle.succeeded(address)
        return token

    def _find(self, given: str) -> Token | None:
        # All are compared, and as digests of one length: the time taken tells nothing.
        digest = _digest(given.encode("latin-1", "replace"))
        found = None
        for expected, token in self._tokens:
            if hmac.compare_digest(digest, expected):
                found = token
        return found


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def _unauthorized(detail: str) -> falcon.HTTPError:
    return problem(falcon.HTTP_401, "unauthorized", detail, {"WWW-Authenticate": "Bearer"})
