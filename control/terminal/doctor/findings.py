"""What is wrong, from what was seen; each with the command that mends it."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from control.config import Config, Fault
from control.terminal.doctor.service import Told
from control.terminal.pools import file_says, state_of
from control.terminal.words import age, size

SKEW_S = 5.0
LAG_S = 5.0
QUIET_S = 5.0
OLD_S = 3_600.0
LEAST_FREE_BYTES = 1 << 30
RECENT_MINUTES = 10
SET_STATE = {"active": "activate", "draining": "drain", "disabled": "disable"}
"""The commands that set a backend's state."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and what to do."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}\n  -> {self.remedy}"


def of_faults(file: str, faults: Iterable[Fault]) -> Iterator[Finding]:
    """The configuration's and the machine's."""
    for fault in faults:
        yield Finding(f"{file}: {fault}", f"weir check -c {file} says whether it is mended")


def of_service(told: Told, address: str, file: str, explained: str) -> Iterator[Finding]:
    """What the service says of itself; ``explained`` is why it says nothing."""
    if not told.is_reachable:
        yield Finding(explained, f"weir up -c {file}, or systemctl start weir-admission")
        return
    for name, error in told.errors.items():
        if error.status in (401, 403):
            yield Finding(
                f"{address} told no {name}: {error.detail}", "weir doctor --token-file FILE"
            )
            break
    if unready := told.errors.get("ready"):
        yield Finding(f"the service admits nothing ({unready.code})", unready.detail)
    if told.skew_s and abs(told.skew_s) > SKEW_S:
        yield Finding(
            f"the service's clock differs from this machine's by {age(abs(told.skew_s))}",
            "timedatectl set-ntp true, on both",
        )
    if drift := _metric(told, "weir_lease_drift"):
        yield Finding(f"granted - ended - live is {drift}", "restart the service, report this")
    if failures := _metric(told, "weir_audit_failures_total"):
        yield Finding(
            f"changes that were not made, for the audit log could not be written: {failures:.0f}",
            "the service's log says why (log/admission.log, or journalctl -u weir-admission); make "
            "room, or give audit.log to the service's user",
        )
    if refusal := (told.parts.get("config") or {}).get("reload_error"):
        yield Finding(
            f"the service refuses what its file says now: {refusal}",
            f"mend {told.parts['config']['file']}, weir check -c it, and reload the service",
        )
    yield from _of_pools(told.parts.get("pools") or [])
    yield from _of_nodes(told.parts.get("nodes") or [])
    yield from _of_leases(told.parts.get("leases") or {})
    yield from _of_history((told.parts.get("history") or {}).get("points") or [])


def _metric(told: Told, name: str) -> float:
    found = re.search(rf"^{name}(?:\{{.*\}})? (\S+)$", told.metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _of_pools(pools: list[Any]) -> Iterator[Finding]:
    for pool in pools:
        for backend in pool["backends"]:
            label = f"{pool['name']}/{backend['name']}"
            if state_of(backend) == "unreachable":
                yield Finding(
                    f"{label} cannot be connected to: {backend['url']}",
                    "start the engine; it is asked again by itself",
                )
            if backend["state"] != "active":
                yield Finding(f"{label} is {backend['state']}", f"weir activate {label}")
            elif says := file_says(backend):
                yield Finding(
                    f"{label} was changed live; weir.yml says {says}", _undo(backend, label)
                )


def _undo(backend: dict[str, Any], label: str) -> str:
    """What takes a backend back to the file's settings: limits and state have commands apart."""
    file = backend["configured"]
    commands = []
    if any(file[name] != backend[name] for name in ("max_streams", "max_tokens")):
        commands.append(f"weir limit {label} --reset")
    if file["state"] != backend["state"]:
        commands.append(f"weir {SET_STATE[file['state']]} {label}")
    return "; ".join(commands)


def _of_nodes(nodes: list[Any]) -> Iterator[Finding]:
    for node in nodes:
        name, memory, tailer = node["name"], node["memory"] or {}, node["tailer"] or {}
        if node["silent"]:
            since = f"for {age(node['silent_s'])}" if node["silent_s"] is not None else "ever"
            yield Finding(
                f"the agent of {name} has not been heard {since}",
                f"on {name}: weir agent -c weir.yml, or systemctl start weir-agent",
            )
            continue
        if memory.get("state") in ("alarm", "full"):
            used = f"{size(memory['used_bytes'])} of {size(memory['limit_bytes'])}"
            yield Finding(
                f"the memory of {name} is at its {memory['state']} mark: {used}",
                f"weir nodes {name} shows whose it is; docs/runbook.md#the-node-is-out-of-memory",
            )
        if memory.get("leak_suspected"):
            yield Finding(
                f"the memory of {name} grows and its streams do not: a leak is suspected",
                f"weir nodes {name} shows the process; a reload of nginx gives new workers",
            )
        if tailer.get("lag_seconds", 0) > LAG_S:
            behind = f"{age(tailer['lag_seconds'])}, {size(tailer['lag_bytes'])}"
            yield Finding(
                f"the log tailer of {name} is behind: {behind}",
                f"the agent's log on {name}: log/agent.log, or journalctl -u weir-agent",
            )


def _of_leases(leases: dict[str, Any]) -> Iterator[Finding]:
    oldest = leases.get("oldest") or []
    if oldest and oldest[0]["age_s"] > OLD_S:
        lease = oldest[0]
        yield Finding(
            f"stream {lease['id']} runs for {age(lease['age_s'])}", f"weir kill {lease['id']}"
        )


def _of_history(points: list[Any]) -> Iterator[Finding]:
    recent = points[-RECENT_MINUTES:]
    refused: Counter[str] = Counter()
    for point in recent:
        refused.update(point["refused"])
    granted = sum(point["granted"] for point in recent)
    if refused and refused.total() > granted:
        reasons = ", ".join(f"{name} {number}" for name, number in refused.most_common(3))
        yield Finding(
            f"more was refused than granted in the last {len(recent)} minutes: {refused.total()} "
            f"({reasons}) against {granted}",
            "weir pools shows which limit; weir events --kind refused, each as it comes",
        )


def of_versions(config: Config, file: str, told: Told, running: str | None) -> Iterator[Finding]:
    """Where the file, the service and nginx do not have the same configuration."""
    service = (told.parts.get("config") or {}).get("version")
    pid = f"$(cat {config.state}/run"
    if service and service != config.version:
        yield Finding(
            f"the service runs version {service} of the configuration, the file is "
            f"{config.version}",
            f"kill -HUP {pid}/admission.pid)",
        )
    if running and running != config.version:
        yield Finding(
            f"nginx's files are of version {running} of the configuration, the file is "
            f"{config.version}",
            _render_anew(config, file, f"kill -HUP {pid}/nginx.pid)"),
        )
    for session in told.parts.get("sessions") or []:
        version = session.get("config")
        if version and version != config.version:
            yield Finding(
                f"nginx's worker {session['id']} runs version {version} of the configuration",
                f"kill -HUP {pid}/nginx.pid); a worker with streams goes on until they end",
            )
        if session["silent_s"] > QUIET_S and session["leases"]:
            yield Finding(
                f"nginx's worker {session['id']} holds {session['leases']} leases and has not "
                f"been heard for {age(session['silent_s'])}",
                "its leases end by themselves after session_ttl; weir sessions shows it",
            )


def _render_anew(config: Config, file: str, reload: str) -> str:
    """Rendered by another user, as by root, nginx's files would be for that one's nginx."""
    owner = config.state.stat().st_uid
    if owner == os.geteuid():
        return f"weir render -c {file}, then {reload}"
    return (
        f"run the playbook again: it renders as the user of {config.state} ({owner}), with what "
        "its units give it; docs/runbook.md#a-change-is-not-live"
    )


def of_machine(limits: dict[str, Any], journal: dict[str, Any]) -> Iterator[Finding]:
    """Disk and journal."""
    disk = limits.get("state_disk_bytes")
    if disk and disk["free"] < LEAST_FREE_BYTES:
        yield Finding(f"the state folder's disk has {size(disk['free'])} left", "make room there")
    if journal.get("check") not in (None, "ok"):
        yield Finding(
            f"the journal {journal['file']} is not sound: {journal['check']}",
            "the service puts a damaged one aside when it starts, and asks nginx what runs",
        )
    if journal.get("put_aside"):
        yield Finding(
            f"a damaged journal was put aside: {journal['put_aside']}",
            "find out why (disk, power), then remove it",
        )
