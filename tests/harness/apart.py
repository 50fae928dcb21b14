"""An admission service on its own, and the certificates by which nodes elsewhere and it know each
other."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import requests
import trustme
import yaml

from tests.harness.node import free_port, wait_for


class Authority:
    """A certificate authority with its files in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, file: str, *names: str) -> dict[str, str]:
        """A certificate of these names, the first of them its common name too: ``certificate``
        and ``key`` as in ``weir.yml``."""
        made = self._ca.issue_cert(*names, common_name=names[0])
        certificate, key = self._folder / f"{file}.pem", self._folder / f"{file}.key"
        certificate.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return {"certificate": str(certificate), "key": str(key)}


class Service:
    """``weir admission``, with a listener for nodes elsewhere."""

    def __init__(self, folder: Path, engines: list[str], **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.state = folder / "s"
        self.admin_port, self.port = free_port(), free_port()
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        limits = settings.pop("limits", {})
        backends = [{"name": f"gpu-{n}", "url": url, **limits} for n, url in enumerate(engines)]
        admission = {"listen": f"127.0.0.1:{self.port}", **settings.pop("admission", {})}
        config = {
            "state": str(self.state),
            "admin": {"listen": f"127.0.0.1:{self.admin_port}", **settings.pop("admin", {})},
            "admission": admission,
            "pools": {"default": {"backends": backends, **settings.pop("pool", {})}},
            **settings,
        }
        self.file = folder / "weir.yml"
        self.file.write_text(yaml.safe_dump(config))
        self._log = folder / "service.log"
        self.start()

    def start(self) -> None:
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "control", "admission", "-c", str(self.file)],
                stdout=log,
                stderr=log,
            )
        wait_for(lambda: self.pid_file.exists() and self.is_ready(), 30, 0.05)

    def is_ready(self) -> bool:
        try:
            return requests.get(f"{self.admin}/readyz", timeout=1).ok
        except requests.RequestException:
            return False

    @property
    def pid_file(self) -> Path:
        return self.state / "run" / "admission.pid"

    @property
    def log(self) -> str:
        return self._log.read_text()

    def sessions(self) -> list[dict[str, Any]]:
        return list(requests.get(f"{self.admin}/v1/sessions", timeout=5).json()["sessions"])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)
