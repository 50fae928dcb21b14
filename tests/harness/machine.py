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


class Network:
    """A bridge that machines are on, with the test at ``gateway``."""

    def __init__(self) -> None:
        number = os.getpid()
        self.bridge = f"wb{number}"
        # Out of the addresses that are kept for tests between networks.
        self._base = f"198.{18 + (number >> 8 & 1)}.{number & 255}"
        self.gateway = f"{self._base}.1"
        self._hosts = itertools.count(2)
        ip(f"link add {self.bridge} type bridge")
        ip(f"address add {self.gateway}/24 dev {self.bridge}")
        ip(f"link set {self.bridge} up")

    def next_host(self) -> int:
        return next(self._hosts)

    def address(self, host: int) -> str:
        return f"{self._base}.{host}"

    def stop(self) -> None:
        ip(f"link delete {self.bridge}")


class Machine:
    """One machine on a copy of ``root`` that is gone with it. ``address`` is where it is reached,
    ``gateway`` where it reaches the test."""

    def __init__(self, root: Path, folder: Path, network: Network, name: str) -> None:
        host = network.next_host()
        self.name = name
        self.link = f"w{os.getpid()}-{host}"
        self.gateway, self.address = network.gateway, network.address(host)
        self._network = network
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
            f"--network-bridge={self._network.bridge}",
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
        wait_for(self._has_address, BOOT_TIMEOUT_S)
        wait_for(lambda: self.run("true", check=False).returncode == 0, BOOT_TIMEOUT_S, 0.2)

    def _has_address(self) -> bool:
        """Give it its address, where its interface is there already."""
        inside = f"nsenter --net=/proc/{self._init()}/ns/net ip"
        set_up = f"{inside} address add {self.address}/24 dev host0 && {inside} link set host0 up"
        return subprocess.run(set_up, shell=True, capture_output=True, check=False).returncode == 0

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


def ip(arguments: str) -> None:
    """Run ``ip``."""
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)


def _hierarchies() -> list[Path]:
    """Where cgroups that systemd needs are made: version 2, or 1 with 2 beside it."""
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return [CGROUPS / name for name in ("systemd", "unified") if (CGROUPS / name).is_dir()]
