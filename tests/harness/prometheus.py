"""Debian's Prometheus, from where `make setup` has put it."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import requests
import yaml

from tests.harness.node import free_port, wait_for

BINARIES = Path(sys.prefix) / "prometheus/usr/bin"


def promtool(*arguments: str | Path, text: str = "") -> str:
    """What promtool says; an AssertionError with it where it is not content."""
    done = subprocess.run(
        [BINARIES / "promtool", *arguments],
        input=text, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


class Prometheus:
    """A server that looks at its targets, and judges by its rules, each second."""

    def __init__(self, folder: Path, rules: Path, targets: dict[str, str]) -> None:
        """``targets``: an admin listener, ``HOST:PORT``, by the name it gets as ``site``."""
        folder.mkdir(parents=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        config = {
            "global": {
                "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s",
            },
            "rule_files": [str(rules)],
            "scrape_configs": [
                {
                    "job_name": "weir",
                    "static_configs": [
                        {"targets": [place], "labels": {"site": name}}
                        for name, place in targets.items()
                    ],
                }
            ],
        }  # fmt: skip
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [BINARIES / "prometheus", f"--config.file={file}",
                 f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}",
                 "--log.level=warn"],
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        wait_for(self._is_ready, 20)

    def alerts(self) -> list[dict[str, Any]]:
        """All that are pending or firing."""
        return list(self._get("/api/v1/alerts")["alerts"])

    def rules(self) -> list[dict[str, Any]]:
        """The groups that it has loaded."""
        return list(self._get("/api/v1/rules")["groups"])

    def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant query's result."""
        return list(self._get("/api/v1/query", query=expression)["result"])

    def query_range(self, expression: str, seconds: int) -> list[dict[str, Any]]:
        """The same over the last seconds."""
        now = time.time()
        span = {"start": now - seconds, "end": now, "step": 1}
        return list(self._get("/api/v1/query_range", query=expression, **span)["result"])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)

    def _get(self, path: str, **params: Any) -> Any:
        answer = requests.get(self.url + path, params=params, timeout=10).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return requests.get(f"{self.url}/-/ready", timeout=1).ok
        except requests.RequestException:
            return False
