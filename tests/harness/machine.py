"""A Debian machine of a test: systemd in namespaces of its own, reached by ssh and HTTP."""

import itertools
import os
import shlex
import signal
import subprocess
from pathlib import Path

from tests.harness.node import wait_for

BOOT_TIMEOUT_S = 60
CGROUPS = Path("/sys/fs/cgroup")
_numbers = itertools.count(os.getpid() % 16_000 * 4)


class Machine:
    """One machine on a copy of ``root`` that is gone with it. ``address`` is where it is reached,
    ``gateway`` where it reaches the test."""

    def __init__(self, root: Path, folder: Path, name: str = "m") -> None:
        number = next(_numbers)
        self.name = name
        self.link = f"w{number}"
        # A network of four addresses each, out of those for tests between networks.
        base = f"198.18.{number >> 6 & 255}."
        self.gateway = base + str((number & 63) * 4 + 1)
        self.address = base + str((number & 63) * 4 + 2)
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.key = folder / "key"
        self._console = folder / "console.log"
        self._cgroups = [group / f"weir-test-{self.link}" for group in _hierarchies()]
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True
        )
        self._process = self._boot(root)
        try:
            self._connect()
        except BaseException:
            self.stop()
            raise

    def _boot(self, root: Path) -> "subprocess.Popen[bytes]":
        for group in self._cgroups:
            group.mkdir(exist_ok=True)
        command = [
            "systemd-nspawn", "--quiet", f"--directory={root}", "--boot", "--volatile=overlay",
            "--register=no", "--link-journal=no", "--resolv-conf=off", "--timezone=off",
            "--network-veth-extra", f"{self.link}:host0", "--private-network",
            f"--hostname={self.name}", f"--machine={self.link}", "--console=pipe",
            f"--bind-ro={self.key}.pub:/root/.ssh/authorized_keys",
        ]  # fmt: skip
        if not Path("/run/systemd/system").exists():
            # Nobody here hands out cgroups: it stays in the one that it begins in.
            command.append("--keep-unit")
        with self._console.open("wb") as console:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                preexec_fn=self._enter_cgroups,  # noqa: PLW1509 (no threads)
                start_new_session=True,
            )  # fmt: skip

    def _enter_cgroups(self) -> None:
        for group in self._cgroups:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    def _connect(self) -> None:
        ip(f"address add {self.gateway}/30 dev {self.link}", wait=True)
        ip(f"link set {self.link} up")
        pid = str(wait_for(self._init, BOOT_TIMEOUT_S))
        inside = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        ip("link set lo up", inside)
        ip(f"address add {self.address}/30 dev host0", inside)
        ip("link set host0 up", inside)
        wait_for(lambda: self.run("true", check=False).returncode == 0, BOOT_TIMEOUT_S, 0.2)

    def _init(self) -> int | None:
        assert self._process.poll() is None, self._console.read_text()
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return int(children.split()[0]) if children.split() else None

    # -- what a test does with it --------------------------------------------------------------

    @property
    def ssh(self) -> list[str]:
        return [
            "-i", str(self.key), "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR",
            "-o", f"UserKnownHostsFile={self.folder}/known", "-o", "ConnectTimeout=5",
        ]  # fmt: skip

    def run(self, command: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a shell command on it."""
        done = subprocess.run(
            ["ssh", *self.ssh, f"root@{self.address}", command],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert not check or done.returncode == 0, (command, done.stdout, done.stderr)
        return done

    def text(self, command: str) -> str:
        return self.run(command).stdout.strip()

    def variables(self) -> dict[str, str]:
        """How Ansible reaches it."""
        return {
            "ansible_host": self.address,
            "ansible_user": "root",
            "ansible_ssh_common_args": shlex.join(self.ssh),
        }

    def stop(self) -> None:
        """Switch it off, without waiting for its services."""
        pid = self._process.pid
        if self._process.poll() is None:
            init = self._init() if Path(f"/proc/{pid}").exists() else None
            if init:
                os.kill(init, signal.SIGRTMIN + 14)  # systemd: halt at once
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        for group in self._cgroups:
            for folder in sorted(group.glob("**/"), reverse=True):
                folder.rmdir()


def ip(arguments: str, before: list[str] | None = None, wait: bool = False) -> None:
    """Run ``ip``; with ``wait`` until it works: an interface appears when it likes to."""
    command = [*(before or []), "ip", *arguments.split()]
    if wait:
        wait_for(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0)
    else:
        subprocess.run(command, check=True, capture_output=True)


def _hierarchies() -> list[Path]:
    """Where cgroups that systemd needs are made: version 2, or 1 with 2 beside it."""
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return [CGROUPS / name for name in ("systemd", "unified") if (CGROUPS / name).is_dir()]
