"""When to ask the service again after it could not be reached, and what to say of it."""

import logging
import math

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 1.0

log = logging.getLogger("weir.agent")


class Outage:
    """Waits that double. It is said once when the service goes, and once when it is back."""

    def __init__(self) -> None:
        self._failures = 0
        self._since = 0.0
        self._retry_at = -math.inf

    def is_over(self, now: float) -> bool:
        """Whether it may be asked now."""
        return now >= self._retry_at

    def failed(self, why: Exception, now: float) -> None:
        """It did not do what it was asked."""
        if not self._failures:
            self._since = now
            log.warning("service_away error=%s", why)
        wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(self._failures, 10))
        self._failures += 1
        self._retry_at = now + wait

    def ended(self, now: float) -> None:
        """It did all that it was asked."""
        if self._failures:
            log.info("service_back after_s=%.1f", now - self._since)
        self._failures = 0
