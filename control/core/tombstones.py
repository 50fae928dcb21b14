"""Ids that have ended, remembered for a while."""

from collections.abc import Iterator

LIFETIME_S = 60.0
"""At least so long an ended or never seen id refuses a late acquire (design.md, section 2)."""
MAX_EACH = 50_000
"""Ids a generation, about 5 MB. More ends in a minute shorten how long each is remembered."""


class Tombstones:
    """A set whose members fade: two generations, the older one forgotten as a whole.

    An id is remembered for one to two lifetimes. Adding and asking are O(1); a dictionary in
    order of age is not, for finding its oldest entry walks over all that were removed before.
    """

    def __init__(self) -> None:
        self._young: set[str] = set()
        self._old: set[str] = set()
        self._turned_at = float("-inf")
        self.turns = 0
        """How often a generation has been forgotten."""

    def add(self, lease_id: str, now: float) -> None:
        """Remember an id from now on."""
        self.fade(now)
        if len(self._young) >= MAX_EACH:
            self._turn(now)
        self._young.add(lease_id)

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self._young or lease_id in self._old

    def __iter__(self) -> Iterator[str]:
        yield from self._old
        yield from self._young

    def fade(self, now: float) -> None:
        """Forget what is older than its time."""
        silence = now - self._turned_at
        if silence >= LIFETIME_S:
            self._turn(now)
            if silence >= 2 * LIFETIME_S:
                self._turn(now)

    def _turn(self, now: float) -> None:
        self._young, self._old = set(), self._young
        self._turned_at = now
        self.turns += 1
