"""Following events: what the bytes mean, and what a broken connection does not lose."""

from collections.abc import Generator, Iterator
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.client import Event, ServiceError
from control.client import events as module
from control.client.events import EventParser, follow

STREAM = (
    b"retry: 2000\n\n"
    b': ping\n\nid: 7\nevent: granted\ndata: {"id":"a","scene":"\xe5\x8f\x91\xe7\x83\xad"}\n\n'
    b'event: gap\r\ndata: {"missed":3}\r\n\r\nid: 8\nevent: ended\ndata: {}\n\nid: 9\nevent: half'
)
EVENTS = [
    Event("granted", 7, {"id": "a", "scene": "发热"}),
    Event("gap", None, {"missed": 3}),
    Event("ended", 8, {}),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_bytes_in_any_pieces_are_the_same_events(cuts: list[int]) -> None:
    parser, found = EventParser(), list[Event]()
    places = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(places):
        found += parser.feed(STREAM[start:end])
    assert found == EVENTS
    assert (parser.last_id, parser.retry_s) == (8, 2.0)


@pytest.mark.parametrize("nonsense", [b"data: {\n\n", b"x" * (2 << 20)])
def test_what_is_no_event_stream_is_an_error(nonsense: bytes) -> None:
    with pytest.raises(ServiceError):
        EventParser().feed(nonsense)


class Service:
    """Plays connections: bytes to give, or an error to raise; remembers what it was asked."""

    def __init__(self, *connections: list[bytes | ServiceError]) -> None:
        self.left = list(connections)
        self.asked: list[int | None] = []

    def connect(self, last_id: int | None) -> Generator[bytes, None, None]:
        self.asked.append(last_id)
        for part in self.left.pop(0):
            if isinstance(part, ServiceError):
                raise part
            yield part


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The waits between connections, which take no time here."""
    waited: list[float] = []
    monkeypatch.setattr(module.time, "sleep", waited.append)
    yield waited


def event(number: int) -> bytes:
    return b"id: %d\nevent: ended\ndata: {}\n\n" % number


def test_a_lost_connection_goes_on_after_the_last_whole_event(waits: list[float]) -> None:
    service = Service(
        [event(1), event(2), b'id: 3\nevent: granted\ndata: {"half": 1}\nda',
         ServiceError("reset")],
        [ServiceError("refused")], [ServiceError("busy", 503)], [event(3), event(4)], [event(5)],
    )  # fmt: skip
    losses: list[ServiceError] = []
    found = list(islice(follow(service.connect, None, losses.append), 5))
    assert found == [Event("ended", number, {}) for number in (1, 2, 3, 4, 5)]
    assert service.asked == [None, 2, 2, 2, 4]
    assert [str(loss).split()[0] for loss in losses] == ["reset", "refused", "busy", "the"]
    assert waits[0] < waits[1] < waits[2] and waits[3] < waits[2], "by and by slower, then anew"


def test_what_will_not_pass_by_itself_is_raised() -> None:
    for status in (400, 401, 403, 404):
        service = Service([event(1)], [ServiceError("no", status)])
        with pytest.raises(ServiceError):
            list(follow(service.connect, None, None))
    with pytest.raises(ServiceError):  # nor is a service waited for that was never there
        list(follow(Service([ServiceError("refused")]).connect, None, None))


def test_it_begins_after_an_event_that_is_known() -> None:
    service = Service([event(8)])
    assert [each.id for each in islice(follow(service.connect, 7, None), 1)] == [8]
    assert service.asked == [7]
