"""What a seed stands for: the faults with their times, and what each client asks for and does.

Pure: the same seed gives the same plan, and a longer run begins with the shorter one's faults.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.harness.client import chat_body

WEIGHTS = {
    "worker-kill": 8,  # SIGKILL of an nginx worker
    "worker-segv": 4,
    "workers-kill": 2,  # all of them at once
    "worker-stop": 4,  # SIGSTOP for less than a session's time to live
    "nginx-kill": 2,  # the master: weir up starts nginx anew
    "nginx-stop": 3,  # the master is told to end: fast, or gracefully and then fast
    "reload": 7,
    "reloads": 3,  # several within a second
    "rotate": 4,  # the access log: rename, USR1
    "log-delete": 3,
    "log-truncate": 3,  # copytruncate
    "service-kill": 6,  # the admission worker
    "service-stop": 6,
    "arbiter-kill": 2,
    "arbiter-reload": 3,
    "agent-kill": 4,
    "agent-stop": 3,
    "journal-remove": 3,
    "journal-lose": 1,  # and the service killed before it notices
    "journal-spoil": 4,  # damaged while nobody decides, or the disk is full
    "limits": 8,  # lowered or closed, and back
    "cut": 8,  # of a live stream
    "session-end": 4,  # of a worker that was killed just before
}
"""Every fault, and how often it is drawn in relation to the others."""
HOLDS_S = {
    "nginx-stop": (1.0, 6.0),  # between the two signals
    "worker-stop": (0.3, 1.5),
    "service-stop": (0.3, 2.0),
    "agent-stop": (2.0, 6.0),
    "journal-spoil": (0.5, 3.0),
    "limits": (3.0, 8.0),
}
"""How long those last that are undone again."""
FIRST_FAULT_S = 2.0
MEAN_GAP_S = 1.3
"""Exponential: many faults fall into the time of the one before."""
SCENES = {"brief": 10, "usual": 60, "long": 200}
"""Tokens of output by scene. Streams generate what was reserved for them, or less."""
LENGTHS_S = {"brief": (0.2, 2.0), "usual": (1.0, 8.0), "long": (5.0, 20.0)}
SCENE_WEIGHTS = {"brief": 4, "usual": 4, "long": 2}
PROMPT_CHARS = (7_000, 20_000)
"""Most of what a stream takes is its prompt: reserved and taken tokens are near each other."""
REFUSED_REST_S = (0.1, 0.8)
PATHS = ("/v1/chat/completions", "/v1/chat/beats")
"""Without heartbeats, and with."""
BEATS_SHARE = 0.25
SHORT_SHUTDOWN_S, LONG_SHUTDOWN_S = 4.0, 600.0


@dataclass(frozen=True, slots=True)
class Event:
    """A fault that is due ``at`` seconds after the start. ``pick``, below 1, chooses its victim
    among those that there are; ``hold_s`` is how long it lasts."""

    number: int
    at: float
    fault: str
    pick: float
    hold_s: float

    def __str__(self) -> str:
        held = f" for {self.hold_s:.1f} s" if self.hold_s else ""
        return f"#{self.number} {self.fault}{held}"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a client, and what the client does with its answer. Times in seconds.

    ``fail_after``: the engine dies after so many frames. ``nonsense``: the engine refuses the
    body. ``hesitates``: between connecting and asking. ``uploads``: between the body's halves.
    ``reads_every``: 0 reads as fast as it comes. ``leaves``: how, and ``leaves_at`` when, counted
    from asking. ``beats``: on the route with heartbeats.
    """

    tag: str
    protocol: str
    streams: bool
    scene: str
    frames: int
    gap: float
    first: float
    late: bool
    prompt_chars: int
    payload: int | None
    fail_after: int | None
    nonsense: bool
    hesitates: float
    uploads: float
    reads_every: float
    leaves: str | None
    leaves_at: float
    rests: float
    rests_refused: float
    beats: bool

    @property
    def path(self) -> str:
        """Where it is posted to."""
        return PATHS[self.beats]

    def body(self) -> bytes:
        """What is posted."""
        sim = {"late": self.late, "tag": self.tag, "first_ms": self.first * 1_000}
        if self.payload is not None:
            sim["payload"] = self.payload
        if self.fail_after is not None:
            sim["fail_after"] = self.fail_after
        gap = "none" if self.nonsense else self.gap * 1_000
        prompt = "x" * self.prompt_chars
        body = chat_body(self.frames, gap, prompt, **sim)  # type: ignore[arg-type]
        return body if self.streams else body.replace(b'"stream": true', b'"stream": false')


def admits_locally(seed: int) -> bool:
    """Whether the pool is ``when_down: local`` in this run: every second seed."""
    return seed % 2 == 0


def shutdown_timeout_s(seed: int) -> float:
    """How long a worker that has to go may finish its streams. In two of three seeds long ones are
    cut; in the third a reload costs nobody anything."""
    return SHORT_SHUTDOWN_S if seed % 3 else LONG_SHUTDOWN_S


def schedule(seed: int, duration_s: float) -> Iterator[Event]:
    """The faults of a run, in order."""
    chance = Random(f"faults {seed}")
    at, number = FIRST_FAULT_S, 0
    while at < duration_s:
        number += 1
        [fault] = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        pick, hold = chance.random(), chance.random()
        least, most = HOLDS_S.get(fault, (0.0, 0.0))
        yield Event(number, at, fault, pick, least + hold * (most - least))
        at += chance.expovariate(1 / MEAN_GAP_S)


def request(seed: int, client: int, number: int, longest_s: float) -> Request:
    """The request ``number`` of a client; no stream lasts much longer than ``longest_s``."""
    chance = Random(f"client {seed} {client} {number}")
    [scene] = chance.choices(list(SCENE_WEIGHTS), list(SCENE_WEIGHTS.values()))
    least, most = (min(length, longest_s) for length in LENGTHS_S[scene])
    length = math.exp(chance.uniform(math.log(least), math.log(most)))
    first = chance.choice([0.005, 0.05, 0.3 * length])
    frames = SCENES[scene]
    protocol = chance.choice(["h1", "h1", "h2"])
    streams = chance.random() < 0.85
    slow = chance.random() < 0.1
    breaks = streams and chance.random() < 0.08
    leaves = None
    if chance.random() < 0.35:
        leaves = "cancel" if protocol == "h2" else chance.choice(["fin", "rst"])
    moment = chance.choice(["asking", "prefill", "stream", "end"])
    leaves_at = {
        "asking": chance.uniform(0.0, 0.008),
        "prefill": chance.uniform(0.0, first),
        "stream": chance.uniform(first, length),
        "end": length + chance.uniform(-0.04, 0.04),
    }[moment]
    return Request(
        tag=f"{client}-{number}",
        protocol=protocol,
        streams=streams,
        scene=scene,
        frames=frames,
        gap=(length - first) / frames,
        first=first,
        late=chance.random() < 0.5,
        prompt_chars=chance.randint(*PROMPT_CHARS),
        payload=chance.choice([800, 2_000]) if slow else None,
        fail_after=chance.choice([0, 0, chance.randint(1, frames)]) if breaks else None,
        nonsense=chance.random() < 0.02,
        hesitates=chance.choice([0.0] * 9 + [chance.uniform(0.0, 2.0)]),
        uploads=chance.choice([0.0] * 9 + [chance.uniform(0.0, 1.0)]) if protocol == "h1" else 0.0,
        reads_every=chance.uniform(0.02, 0.1) if slow else 0.0,
        leaves=leaves,
        leaves_at=max(0.0, leaves_at),
        rests=chance.uniform(0.0, 0.3),
        rests_refused=chance.uniform(*REFUSED_REST_S),
        beats=chance.random() < BEATS_SHARE,
    )
