"""A bare Debian 12 as a folder: nothing but what every machine has, Python and sshd.

Built once with ``mmdebstrap`` from this machine's own package sources, and kept between runs. The
packages that the roles install lie in its apt cache as files, not installed: the machines made of
it need no network but to the test.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.harness.lock import locked

KEPT = Path("/var/tmp/weir-test-roots")
INCLUDED = ("systemd", "systemd-sysv", "dbus", "python3", "openssh-server", "iproute2", "logrotate")
INSTALLED_BY_ROLES = (
    "python3-apt", "python3-venv", "procps", "nginx-light", "libnginx-mod-http-lua", "lua-cjson",
)  # fmt: skip
COMMANDS = ("mmdebstrap", "systemd-nspawn", "nsenter", "ssh", "ssh-keygen", "ip")


def why_no_machine() -> str | None:
    """What keeps this machine from running another one, or None."""
    if os.geteuid() != 0:
        return "only root can boot a machine"
    missing = [name for name in COMMANDS if not shutil.which(name)]
    return f"not installed: {', '.join(missing)}" if missing else None


def bare_debian() -> Path:
    """The folder. It must not be written to."""
    recipe = Path(__file__).read_bytes()
    root = KEPT / hashlib.sha256(recipe).hexdigest()[:12]
    KEPT.mkdir(mode=0o755, exist_ok=True)
    with locked(KEPT / "lock"):
        if not root.exists():
            _build(root)
    return root


def _build(root: Path) -> None:
    sources = _sources()
    with tempfile.TemporaryDirectory(dir=KEPT) as scratch:
        # What is asked for is only this: mmdebstrap wants to make the folder itself.
        made = Path(scratch) / "root"
        _run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(INCLUDED)}",
             "--skip=cleanup/apt/lists", "--dpkgopt=force-unsafe-io", "bookworm",
             str(made), *sources],
        )  # fmt: skip
        _run(
            ["chroot", str(made), "apt-get", "install", "--yes", "--quiet=2", "--download-only",
             "--no-install-recommends", *INSTALLED_BY_ROLES],
        )  # fmt: skip
        (made / "etc/hostname").unlink()  # that of the machine that built it
        made.chmod(0o755)
        made.replace(root)


def _sources() -> list[str]:
    """This machine's package sources, where they are of Debian 12; else mmdebstrap's own."""
    folder = Path("/etc/apt/sources.list.d")
    files = [Path("/etc/apt/sources.list"), *sorted(folder.glob("*.list"))]
    files += sorted(folder.glob("*.sources"))
    return [
        str(file)
        for file in files
        if file.is_file()
        and re.search(r"\bbookworm\b", text := file.read_text())
        and re.search(r"debian[/ \n]", text)
    ]


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"
