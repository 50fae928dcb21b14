"""One run of a seed: start everything, hurt it, look, and tell."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from tests.chaos import aftermath, plan
from tests.chaos.bed import Bed, make_bed
from tests.chaos.causes import Causes
from tests.chaos.crowd import Crowd
from tests.chaos.faults import Missed, Scene
from tests.chaos.injector import Injector
from tests.chaos.limits import LimitsInForce
from tests.chaos.logs import AccessLog
from tests.chaos.outcome import Kind
from tests.chaos.plan import Event
from tests.chaos.report import Report
from tests.chaos.watch import Watch

Say = Callable[[str], None]
"""Takes a line of progress."""

CLIENTS = 52
STATUS_S = 5.0
FINISH_S = 60.0
"""The longest stream, slowly read."""
LONGEST_WITHOUT_S = 20.0
"""Nothing keeps the node from granting for so long: weir up waits 5 s, a pool settles for 3 s."""
AT_ONCE = 16


def run(seed: int, duration_s: float, folder: Path, say: Say) -> Report:
    """Do it. What was wrong is in the report's ``problems``."""
    report = Report(seed, duration_s, plan.admits_locally(seed))
    events = list(plan.schedule(seed, duration_s))
    report.schedule = [f"{event.at:.2f} s {event}" for event in events]
    say(f"seed {seed}: {len(events)} faults in {duration_s:g} s; {_mode(seed)}")
    for line in report.schedule:
        say(f"  due {line}")
    with make_bed(folder, seed) as bed:
        _Run(bed, report, say).go(events)
    return report


def _mode(seed: int) -> str:
    local = plan.admits_locally(seed)
    mode = "nginx decides while the service is away" if local else "refused while it is away"
    return f"{mode}; old workers are cut after {plan.shutdown_timeout_s(seed):g} s"


class _Run:
    """The parts of one run."""

    def __init__(self, bed: Bed, report: Report, say: Say) -> None:
        self._bed = bed
        self._report = report
        self._say = say
        self._lock = threading.Lock()
        self._causes = Causes()
        limits = LimitsInForce()
        node = bed.node
        self._log = AccessLog(node.state / "log/access.log", self._reopen_log)
        self._scene = Scene(bed, self._causes, limits, self._log)
        self._injector = Injector(self._scene)
        longest_s = min(20.0, report.duration_s / 3)
        self._crowd = Crowd(node, report.seed, CLIENTS, longest_s)
        self._watch = Watch(bed, self._causes, limits, self._crowd.streams, self._problem)
        self._judged = 0
        self._began = 0.0

    def go(self, events: list[Event]) -> None:
        """From the first request to the last check."""
        node = self._bed.node
        self._problems(aftermath.check_serving(node))
        baseline = aftermath.descriptors(node)
        self._began = time.monotonic()
        self._watch.start()
        self._crowd.start()
        self._hurt(events)
        self._say("no more faults; clients finish")
        if not self._crowd.end(FINISH_S):
            self._problem(f"clients still read {FINISH_S:g} s after the end")
        self._judge()
        self._problems(aftermath.check_serving(node))
        self._problems(aftermath.check_settled(self._bed))
        self._watch.stop()
        self._problems(aftermath.check_descriptors(node, baseline, self._log))
        self._count()
        processes = aftermath.family(node)
        self._say("stopping")
        self._problems(aftermath.check_gone(node, processes))
        self._problems(aftermath.check_logs(node))

    # -- while it runs ---------------------------------------------------------------------

    def _hurt(self, events: list[Event]) -> None:
        """Inject each fault in its time; many last, so each has a thread of its own."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                for event in events:
                    self._pass_time(self._began + event.at)
                    pool.submit(self._inject, event)
                self._pass_time(self._began + self._report.duration_s)
            finally:
                self._injector.end()
        self._problems(self._scene.problems)

    def _pass_time(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            due = STATUS_S - (time.monotonic() - self._began) % STATUS_S
            time.sleep(min(left, due))
            if due <= left:
                self._judge()
                self._tell_status()

    def _inject(self, event: Event) -> None:
        try:
            done = self._injector.inject(event)
        except Missed as exc:
            self._report.missed[event.fault] += 1
            self._say(f"{event}: nothing hit, {exc}")
        except Exception as exc:  # noqa: BLE001 (the run goes on, and fails)
            self._problem(f"{event} could not be injected: {exc!r}")
        else:
            self._report.faults[event.fault] += 1
            self._say(f"{event}: {done}")

    def _tell_status(self) -> None:
        counts = self._crowd.counts
        refused = sum(count for what, count in counts.items() if what.startswith("refused"))
        self._say(
            f"{self._watch.active} streams on the engines, {self._crowd.busy} clients;"
            f" complete {counts[Kind.COMPLETE]}, left {counts[Kind.LEFT]}, refused {refused},"
            f" cut {counts[Kind.CUT]}; problems {len(self._report.problems)}"
        )

    # -- judgement -------------------------------------------------------------------------

    def _judge(self) -> None:
        """Each client's outcome needs a cause. Those of a fault that goes on are left for later:
        a kill is noted before it is done."""
        for outcome in self._crowd.since(self._judged):
            self._judged += 1
            cause = self._causes.of(outcome)
            self._report.outcomes[outcome.what] += 1
            if cause is None:
                near = self._causes.near(outcome.ended)[-6:]
                self._problem(f"unexplained: {outcome.told(self._began)}; lately: {near}")
            elif cause != "plan":
                self._report.explained[f"{cause.split()[1]}: {outcome.what}"] += 1

    def _count(self) -> None:
        report, node = self._report, self._bed.node
        outcomes = self._crowd.outcomes
        report.requests = len(outcomes)
        report.streams = sum(engine.stats()["total"] for engine in self._bed.engines.values())
        report.peaks = {
            name: {"streams": seen.peak, "tokens": seen.tokens_peak, "crashed": seen.crashed}
            for name, seen in self._watch.seen.items()
        }
        report.ends = aftermath.ends(node)
        starts = sorted(o.began for o in outcomes if o.status == 200)
        gaps = [b - a for a, b in pairwise(starts)]
        report.longest_without_s = max(gaps, default=report.duration_s)
        if report.longest_without_s > LONGEST_WITHOUT_S:
            self._problem(f"no stream began for {report.longest_without_s:.1f} s")

    def _problem(self, what: str) -> None:
        with self._lock:
            self._report.problems.append(f"{self._elapsed():.1f} s: {what}")
        self._say(f"PROBLEM {what}")

    def _problems(self, found: Iterable[str]) -> None:
        for what in found:
            self._problem(what)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began if self._began else 0.0

    def _reopen_log(self) -> None:
        os.kill(self._bed.node.pid("nginx"), signal.SIGUSR1)
