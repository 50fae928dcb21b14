"""``weir doctor``: look, say what is wrong, and put what a bug report needs into one file."""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import control
from control.check import all_faults
from control.client import ServiceError
from control.config import Config, ConfigError, Fault, load
from control.terminal.command import fail
from control.terminal.doctor import findings, machine, service
from control.terminal.doctor.archive import write_archive
from control.terminal.doctor.logs import node_logs
from control.terminal.doctor.redact import Redactor, secrets_of
from control.terminal.explain import ODD, explain, explain_odd
from control.terminal.place import DEFAULT_FILES, PlaceError, find_place
from control.terminal.screen import Screen, cell
from control.terminal.words import size, streams

VERSION = re.compile(r"^# Configuration: ([0-9a-f]{12})\b", re.MULTILINE)
LISTENERS = ("listen", "listen_h2c", "tls.listen", "admin.listen", "admission.listen")


def doctor(options: argparse.Namespace) -> int:
    """Exit code 0 where the archive was written, whatever was found."""
    screen = Screen(options.json)
    config, file, faults = _configuration(options.config)
    told, address, explained, own_secret = _ask(options, config)
    if file is None and (named := _file_of(told, address)):
        config, file, faults = _configuration(named)
    plain_config = config.model_dump(mode="json") if config else {}
    redactor = Redactor(secrets_of(plain_config, machine.environs(config)) if config else ())
    redactor.add(own_secret)

    limits = machine.limits(config)
    journal = machine.journal(config) if config else {}
    if config and config.state.is_dir():
        faults = [fault for fault in all_faults(config) if not _is_taken(fault, told)]
    found = [
        *_of_service(told, address, str(file or "weir.yml"), explained),
        *findings.of_faults(str(file), faults),
        *(
            findings.of_versions(config, str(file), told, _rendered_version(config))
            if config
            else ()
        ),
        *findings.of_machine(limits, journal),
    ]
    found = [findings.Finding(redactor.text(f.what), redactor.text(f.remedy)) for f in found]

    logs = list(node_logs(config, redactor, options.lines)) if config else []
    members = {
        "findings.txt": "\n".join(map(str, found)) or "nothing was found to be wrong",
        "versions.json": _json(redactor.values(machine.versions(config))),
        "machine.json": _json(redactor.values(limits)),
        "journal.json": _json(redactor.values(journal)),
        "configuration.json": _json(redactor.values(plain_config)),
        "metrics.txt": redactor.text(told.metrics),
        "service-errors.json": _json(
            {name: redactor.text(str(error)) for name, error in told.errors.items()}
        ),
        **{
            f"service/{name}.json": _json(redactor.values(part))
            for name, part in told.parts.items()
        },
        **{f"log/{log.name}": log.text for log in logs},
        **dict(_files(config, redactor)),
    }
    try:
        archive = write_archive(options.output, members)
    except OSError as exc:
        return fail(f"{exc.filename}: {exc.strerror}: name another place with -o FILE")
    _show(screen, found, told, address, archive)
    if file is None and not options.json:
        screen.note(
            "no weir.yml was found here, so neither logs nor settings are in it: name it with "
            "-c FILE (`weir up` without a file writes var/weir.yml)"
        )
    for log in logs:
        if log.missing and not options.json:
            screen.note(f"{log.name} is not in it: {log.missing}")
    return 0


def _configuration(given: Path | None) -> tuple[Config | None, Path | None, list[Fault]]:
    """The file that is looked at, and what keeps it from being read."""
    file = given or next((each for each in DEFAULT_FILES if each.is_file()), None)
    if file is None:
        return None, None, []
    try:
        return load(file), file, []
    except ConfigError as exc:
        # A fault quotes the value, which may be a secret in a wrong place.
        return (
            None,
            file,
            [Fault(f.path, re.sub(r"'.*'", "[value]", f.message)) for f in exc.faults],
        )


def _file_of(told: service.Told, address: str) -> Path | None:
    """The file that a service of this machine says it has read."""
    if urlsplit(address).hostname not in ("127.0.0.1", "::1", "localhost"):
        return None
    name = (told.parts.get("config") or {}).get("file")
    return Path(name) if name and Path(name).is_file() else None


def _ask(options: argparse.Namespace, config: Config | None) -> tuple[service.Told, str, str, str]:
    """What the service says, its address, why it says nothing, and the token that was used."""
    if config is None and not options.admin:
        # A file that is at fault does not say where the service is.
        options = argparse.Namespace(**{**vars(options), "config": None})
    try:
        place = find_place(options)
    except (PlaceError, ConfigError) as exc:
        told = service.Told(errors={"health": ServiceError(str(exc))})
        return told, "", str(exc), ""
    with place.client() as client:
        told = service.ask(client)
    error = told.errors.get("health")
    return told, place.address, explain(error, place) if error else "", place.token or ""


def _of_service(
    told: service.Told, address: str, file: str, explained: str
) -> Iterator[findings.Finding]:
    try:
        yield from findings.of_service(told, address, file, explained)
    except ODD as exc:
        yield findings.Finding(explain_odd(exc, address), "weir doctor --admin URL")


def _is_taken(fault: Fault, told: service.Told) -> bool:
    """A port that is in use is no fault where the service itself is there."""
    return told.is_reachable and fault.path in LISTENERS


def _rendered_version(config: Config) -> str | None:
    try:
        match = VERSION.search((config.state / "nginx" / "nginx.conf").read_text())
    except OSError:
        return None
    return match[1] if match else None


def _files(config: Config | None, redactor: Redactor) -> Iterator[tuple[str, str]]:
    """The state folder's listing and nginx's configuration."""
    if config is None:
        return
    yield "files.txt", "\n".join(machine.files(config))
    try:
        rendered = sorted((config.state / "nginx").glob("*"))
    except OSError:  # a folder of another user's: its listing says so
        return
    for file in rendered:
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError):
            continue
        if file.suffix == ".json":
            try:
                text = _json(redactor.values(json.loads(text)))
            except (ValueError, RecursionError):
                text = "[is not JSON]"
        yield f"nginx/{file.name}", redactor.text(text)


def _running(told: service.Told) -> str:
    try:
        running = sum(pool["streams"] for pool in told.parts.get("pools") or [])
    except ODD:
        return ""
    return f", with {streams(running)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def _show(
    screen: Screen, found: list[findings.Finding], told: service.Told, address: str, archive: Path
) -> None:
    answer = {
        "archive": str(archive),
        "reachable": told.is_reachable,
        "findings": [{"what": each.what, "remedy": each.remedy} for each in found],
    }
    if found:
        lines = [cell(f"{len(found)} found:", "bold")]
    else:
        lines = [cell("nothing was found to be wrong", "green")]
    for each in found:
        lines += [cell(each.what, "red"), cell(f"  -> {each.remedy}")]
    does = f"answers{_running(told)}" if told.is_reachable else "does not answer"
    lines += [
        cell(f"weir {control.__version__}; the service {address} {does}"),
        cell(
            f"for a bug report: {archive} ({size(archive.stat().st_size)}). Secrets and prompts "
            "are left out; look through it before you send it"
        ),
    ]
    screen.show(answer, *lines)
