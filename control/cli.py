"""The ``weir`` command: its arguments, and what runs them. Exit codes: 0 done, 1 failed, 2 wrong
usage. The commands that talk to a running service are in ``control.terminal``."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import control
from control.config import Config, ConfigError, for_engines, load
from control.config.faults import unusable
from control.config.units import Address, address
from control.nginx import NginxError, find_nginx
from control.terminal import streams
from control.terminal.parser import add_commands, add_file, count, duration, period, utf8

SIMULATED_ENGINE = "127.0.0.1:8000"
LASTING = ("up", "admission", "agent", "simulate")
"""Commands that run until they are stopped; the others are for their answer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    has_output = streams.prepare()
    try:
        options = _parser().parse_args(arguments)
        if fault := options.fault_of(options) if "fault_of" in options else None:
            print(f"weir {options.command}: {fault}", file=sys.stderr)
            return 2
        if not has_output and options.command not in LASTING:
            told = "standard output is closed: send it to /dev/null where no answer is wanted"
            print(f"weir: {told}", file=sys.stderr)
            return 1
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except (ConfigError, NginxError) as exc:
        print(f"weir: {exc}", file=sys.stderr)
    except BrokenPipeError:
        # Whoever read has had enough, as `head` has.
        streams.give_up()
        return 0
    except OSError as exc:
        if lost := streams.give_up():
            told = f"standard output cannot be written: {lost.strerror}: send it elsewhere"
        else:
            told = unusable(exc)
        print(f"weir: {told}", file=sys.stderr)
    except KeyboardInterrupt:
        pass
    return 1


class _Parser(argparse.ArgumentParser):
    """Says wrong usage in one line, as all other errors; subcommands are of the same kind."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()
        super().exit(status, message)


class _Command(_Parser):
    """One command; what it is given as text is UTF-8 in any locale."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.register("type", None, utf8)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="weir", description="Admission control for self-hosted LLM streaming.")
    parser.add_argument("--version", action="version", version=f"weir {control.__version__}")
    commands = parser.add_subparsers(
        required=True, metavar="COMMAND", dest="command", parser_class=_Command
    )

    up = commands.add_parser("up", help="the whole node in the foreground")
    add_file(up, "-c", "--config", metavar="FILE", help="weir.yml")
    up.add_argument(
        "--engine", action="append", metavar="URL", help="an engine, instead of a file; repeatable"
    )
    up.add_argument("--listen", metavar="HOST:PORT", help="what clients talk to")
    up.add_argument("--admin", metavar="HOST:PORT", help="the admin plane")
    up.add_argument("--state", metavar="DIR", help="sockets, logs, rendered nginx.conf")
    up.add_argument(
        "--simulate", action="store_true", help="start an engine simulator for each engine"
    )
    up.add_argument("--demo", action="store_true", help="serve a chat page at /")
    up.set_defaults(run=_up)

    for name, run, about in (
        ("admission", _admission, "the admission service alone"),
        ("agent", _agent, "the node's daemon alone"),
        ("check", _check, "validate the file and this machine"),
    ):
        command = commands.add_parser(name, help=about)
        _add_config(command)
        command.set_defaults(run=run)
        if name == "check":
            command.add_argument("--json", action="store_true", help="for scripts")

    render = commands.add_parser("render", help="write nginx's configuration to a folder")
    _add_config(render)
    render.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="default: nginx in the state directory"
    )
    render.add_argument("--json", action="store_true", help="for scripts")
    render.set_defaults(run=_render)

    simulate = commands.add_parser("simulate", help="the engine simulator alone")
    simulate.add_argument(
        "--listen", type=_address, default=address(SIMULATED_ENGINE), metavar="HOST:PORT"
    )
    simulate.add_argument("--kv-tokens", type=count, default=100_000, metavar="N")
    simulate.add_argument("--step", type=period, default=0.02, metavar="DURATION")
    simulate.add_argument("--keepalive", type=period, default=5.0, metavar="DURATION")
    simulate.add_argument("--restart", type=duration, default=2.0, metavar="DURATION")
    simulate.set_defaults(run=_simulate)

    add_commands(commands)
    completion = commands.add_parser("completion", help="a script that makes a shell complete this")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(run=partial(_completion, parser))
    return parser


def _add_config(command: argparse.ArgumentParser) -> None:
    add_file(command, "-c", "--config", default=Path("weir.yml"), metavar="FILE", help="weir.yml")


def _address(text: str) -> Address:
    try:
        if text.endswith(":0"):  # a port of the system's choice, printed when it is known
            return Address(address(text[:-1] + "1").host, 0)
        return address(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} {exc}") from exc


def _up(options: argparse.Namespace) -> int:
    from control.node.up import up

    overrides = {
        key: value
        for key, value in (
            ("listen", options.listen),
            ("admin", options.admin and {"listen": options.admin}),
            ("state", options.state),
        )
        if value
    }
    if options.config and (options.engine or overrides):
        print("weir: -c goes without --engine, --listen, --admin and --state", file=sys.stderr)
        return 2
    if options.config:
        return up(load(options.config), options.config.absolute(), options.simulate, options.demo)
    if not options.engine and not options.simulate:
        print("weir: say what to start: -c weir.yml, --engine URL or --simulate", file=sys.stderr)
        return 2
    engines = options.engine or [f"http://{SIMULATED_ENGINE}"]
    try:
        config, text = for_engines(engines, overrides)
    except ConfigError as exc:
        print(f"weir: {exc}", file=sys.stderr)
        return 2
    config.state.mkdir(parents=True, exist_ok=True)
    file = config.state / "weir.yml"
    file.write_text(f"# Written by weir up from its command line.\n{text}")
    return up(config, file, options.simulate, options.demo)


def _admission(options: argparse.Namespace) -> int:
    os.execv(sys.executable, [sys.executable, "-m", "control.service", str(options.config)])


def _agent(options: argparse.Namespace) -> int:
    from control.agent.daemon import run

    return run(load(options.config))


def _check(options: argparse.Namespace) -> int:
    from control.check import check, check_json

    return check_json(options.config) if options.json else check(load(options.config))


def _completion(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from control.terminal.completion import script

    print(script(parser, options.shell))
    return 0


def _render(options: argparse.Namespace) -> int:
    from control.render import render

    config: Config = load(options.config)
    rendered = render(config, find_nginx(config.nginx.binary), options.output)
    told = {
        "conf": str(rendered.conf),
        "stamp": rendered.stamp,
        "changed": rendered.changed,
        "version": config.version,
    }
    print(json.dumps(told) if options.json else rendered.conf)
    return 0


def _simulate(options: argparse.Namespace) -> int:
    from control.simulator.server import serve

    serve(options.listen, options.kv_tokens, options.step, options.keepalive, options.restart)
    return 0
