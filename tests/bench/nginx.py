"""An nginx that runs in the foreground on a configuration of its own, in a folder of its own."""

import os
import resource
import socket
import subprocess
from pathlib import Path

import psutil

from control.nginx import find_nginx
from tests.harness.node import wait_for

STOP_TIMEOUT_S = 10.0

MAIN = """\
{user}worker_processes {workers};
worker_rlimit_nofile {nofile};
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
daemon off;
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    server_tokens off;
    tcp_nodelay on;
    gzip off;
    keepalive_timeout 75s;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{http}
}}
"""


class Nginx:
    """One nginx. ``http`` is what stands in its http block; it must listen on ``port``."""

    def __init__(self, folder: Path, port: int, http: str, workers: int) -> None:
        folder.mkdir(parents=True)
        nofile = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65_536)
        conf = folder / "nginx.conf"
        conf.write_text(
            MAIN.format(
                user="user root;\n" if os.geteuid() == 0 else "",
                workers=workers,
                nofile=nofile,
                connections=nofile - 256,
                folder=folder,
                http=http,
            )
        )
        self.port = port
        self._errors = folder / "error.log"
        self._process = subprocess.Popen(
            [find_nginx("auto").binary, "-p", folder, "-c", conf, "-e", self._errors],
            stdin=subprocess.DEVNULL,
        )
        try:
            wait_for(self._answers, 10)
        except BaseException:
            self.stop()
            raise

    def workers(self) -> list[int]:
        """The pids of its workers."""
        return [child.pid for child in psutil.Process(self._process.pid).children()]

    def pids(self) -> list[int]:
        """The pids of its master and workers."""
        return [self._process.pid, *self.workers()]

    def stop(self) -> None:
        """End it at once, with all its workers."""
        if self._process.poll() is not None:
            return
        workers = psutil.Process(self._process.pid).children()
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            for process in [psutil.Process(self._process.pid), *workers]:
                if process.is_running():
                    process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"nginx did not start: {self._errors.read_text()}")
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True
