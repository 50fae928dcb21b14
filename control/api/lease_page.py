"""A page of leases: chosen, sorted by age, and gone on with where the last one ended.

A cursor names the last lease that was shown, by what it is sorted by. So a page is right however
many come and go between two of them: none is shown twice, none that lives is left out.
"""

import heapq
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from control.core.lease import Lease, LeaseState

CURSOR = r"^([0-9]{1,12}\.[0-9]{1,17})_([0-9]{1,18})_([A-Za-z0-9_.:-]{1,128})$"

Key = tuple[float, int, str]


class Choice(NamedTuple):
    """What is asked for; None: all."""

    pool: str | None = None
    backend: str | None = None
    tenant: str | None = None
    session: str | None = None
    scene: str | None = None
    state: LeaseState | None = None

    def admits(self, lease: Lease) -> bool:
        """Whether a lease is asked for."""
        return (
            (self.pool is None or lease.pool == self.pool)
            and (self.backend is None or lease.backend == self.backend)
            and (self.tenant is None or lease.tenant == self.tenant)
            and (self.session is None or lease.session == self.session)
            and (self.scene is None or lease.scene == self.scene)
            and (self.state is None or lease.state is self.state)
        )


def page(
    leases: Sequence[Lease],
    choice: Choice,
    limit: int,
    after: Key | None = None,
    youngest_first: bool = False,
) -> tuple[list[Lease], str | None]:
    """At most ``limit`` leases, by default oldest first, and the cursor of those after them. Fast
    where ``leases`` are about oldest first: a heap that is filled from the right end is left alone.
    """
    ordered: Iterable[Lease] = reversed(leases) if youngest_first else leases
    chosen = ordered if choice == Choice() else filter(choice.admits, ordered)
    if after is not None:
        beyond = after
        if youngest_first:
            chosen = (lease for lease in chosen if _key(lease) < beyond)
        else:
            chosen = (lease for lease in chosen if _key(lease) > beyond)
    pick = heapq.nlargest if youngest_first else heapq.nsmallest
    found = pick(limit + 1, chosen, key=_key)
    shown = found[:limit]
    return shown, _cursor(shown[-1]) if len(found) > limit else None


def read_cursor(text: str) -> Key | None:
    """What a cursor says, None where it is none of ours."""
    match = re.fullmatch(CURSOR, text)
    return (float(match[1]), int(match[2]), match[3]) if match else None


def _key(lease: Lease) -> Key:
    return lease.granted_at, lease.grant, lease.id


def _cursor(lease: Lease) -> str:
    return f"{float(lease.granted_at)!r}_{lease.grant}_{lease.id}"
