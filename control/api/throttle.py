"""Who guesses tokens is slowed down."""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable

BURST = 100
"""Wrong tokens that an address may send at once."""
REFILL_PER_S = 1.0
MAX_ADDRESSES = 10_000
IPV6_PREFIX = 64
"""One customer has at least so much of the address space to himself."""


class Throttle:
    """A bucket of failures for each address; ``clock`` in monotonic seconds.

    Of more than :data:`MAX_ADDRESSES` those are forgotten that failed longest ago.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds until this address may try again; 0 where it may now."""
        left = self._left(_key(address))
        return 0.0 if left >= 1 else (1 - left) / REFILL_PER_S

    def failed(self, address: str) -> None:
        """A wrong token came from there."""
        key = _key(address)
        left = self._left(key)
        self._buckets[key] = (max(0.0, left - 1), self._clock())
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """A right one came from there: all is forgotten."""
        if self._buckets:
            self._buckets.pop(_key(address), None)

    def _left(self, key: str) -> float:
        left, at = self._buckets.get(key, (BURST, 0.0))
        return min(float(BURST), left + (self._clock() - at) * REFILL_PER_S)


def _key(address: str) -> str:
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, IPV6_PREFIX), strict=False))
