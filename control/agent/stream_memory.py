"""What one stream costs in nginx's memory."""

from collections.abc import Mapping


class StreamMemory:
    """The workers' memory above their floor, divided by the streams.

    The floor is the smallest memory that any worker which still lives has been seen with: all
    are forks of one master with one configuration, so they begin alike, and one that starts
    while others are busy shows theirs. An agent that starts on a busy node takes the floor for
    too high, and the cost for too low, until a worker is seen at rest.
    """

    def __init__(self) -> None:
        self._floors: dict[int, int] = {}

    def per_stream(self, workers: Mapping[int, int], streams: int) -> float | None:
        """Bytes a stream; None while there are none. ``workers`` maps a pid to its bytes."""
        self._floors = {
            pid: min(used, self._floors.get(pid, used)) for pid, used in workers.items()
        }
        if not workers or streams < 1:
            return None
        floor = min(self._floors.values())
        return sum(used - floor for used in workers.values()) / streams
