"""When memory is short: three states, with a distance between coming and going."""

from dataclasses import dataclass

from control.core.node import MemoryState


@dataclass(frozen=True, slots=True)
class Watermark:
    """Shares of the limit: ``resume < alarm < full`` (alarm: mission 000, section 5)."""

    alarm: float = 0.85
    full: float = 0.92
    resume: float = 0.80

    def after(self, state: MemoryState, ratio: float) -> MemoryState:
        """The state that follows at a level. From ``full`` and ``alarm`` there is only one way
        back, below ``resume``: a node that refused until it had room for one more stream would
        be full again with the next."""
        if ratio >= self.full:
            return MemoryState.FULL
        if ratio < self.resume:
            return MemoryState.OK
        if state is MemoryState.OK and ratio >= self.alarm:
            return MemoryState.ALARM
        return state
