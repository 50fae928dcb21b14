"""An admission service for nodes elsewhere, and the certificates by which they know each other."""

from pathlib import Path
from typing import Any

import psutil
import trustme

from tests.harness.admission import Service
from tests.harness.node import free_port


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


class ServiceForNodes(Service):
    """An admission service with a listener for nodes elsewhere."""

    def __init__(self, folder: Path, engine: str, max_streams: int, **admission: Any) -> None:
        self.nodes_port = free_port()
        backends = [{"name": "gpu-0", "url": engine, "max_streams": max_streams}]
        super().__init__(
            folder,
            admission={"listen": f"127.0.0.1:{self.nodes_port}", **admission},
            pools={"default": {"backends": backends}},
        )

    def sessions(self) -> list[dict[str, Any]]:
        return list(self.get("/v1/sessions")["sessions"])

    def kill(self) -> None:
        """The arbiter and its worker, at once."""
        arbiter = psutil.Process(self.process.pid)
        for process in [arbiter, *arbiter.children(recursive=True)]:  # or it begins another
            process.kill()
        self.process.wait(10)
