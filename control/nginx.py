"""The nginx that is installed here: where, which version, with which modules."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CANDIDATES = ("nginx", "openresty", "/usr/sbin/nginx", "/usr/local/openresty/nginx/sbin/nginx")
DYNAMIC_MODULES = ("ndk_http_module.so", "ngx_http_lua_module.so")
"""What the Lua module needs where it is not built in, in the order of loading (Debian)."""
DEFAULT_MODULES = "/usr/lib/nginx/modules"
INSTALL_HINT = "apt-get install nginx-light libnginx-mod-http-lua lua-cjson, or OpenResty"


class NginxError(Exception):
    """An nginx that cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Nginx:
    """A usable nginx. ``modules`` are the files to load; none where Lua is built in."""

    binary: Path
    version: tuple[int, ...]
    modules: tuple[Path, ...]

    @property
    def has_http2_directive(self) -> bool:
        """Since 1.25.1 ``http2 on`` serves HTTP/1.1 and cleartext HTTP/2 on one port; before,
        ``listen … http2`` makes a port speak nothing else without TLS."""
        return self.version >= (1, 25, 1)


def find_nginx(binary: str) -> Nginx:
    """The nginx named in the configuration, or for ``auto`` the first that is found."""
    path = _locate(binary)
    about = _run([str(path), "-V"])
    if about.returncode != 0:
        raise NginxError(f"{path} -V failed: {about.stderr.strip()[:200]}")
    version = re.search(r"(?:nginx|openresty)/(\d+(?:\.\d+)+)", about.stderr)
    if not version:
        raise NginxError(f"{path} does not say its version: is it nginx?")
    return Nginx(
        path,
        tuple(int(part) for part in version[1].split(".")),
        _lua_modules(about.stderr),
    )


def test_configuration(nginx: Nginx, conf: Path) -> str | None:
    """What ``nginx -t`` finds wrong with a rendered configuration, or None."""
    done = _run(
        [str(nginx.binary), "-t", "-q", "-p", str(conf.parent), "-c", str(conf), "-e", "stderr"]
    )
    return None if done.returncode == 0 else done.stderr.strip()


def _locate(binary: str) -> Path:
    if binary != "auto":
        found = shutil.which(binary)
        if not found:
            raise NginxError(f"nginx.binary: {binary} is not an executable file")
        return Path(found)
    for candidate in CANDIDATES:
        if found := shutil.which(candidate):
            return Path(found)
    raise NginxError(f"no nginx is installed: {INSTALL_HINT}")


def _lua_modules(about: str) -> tuple[Path, ...]:
    if re.search(r"--add-module=\S*(ngx_lua|lua-nginx-module)", about):
        return ()
    folder = re.search(r"--modules-path=(\S+)", about)
    modules = Path(folder[1] if folder else DEFAULT_MODULES)
    files = tuple(modules / name for name in DYNAMIC_MODULES)
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        raise NginxError(f"nginx has no Lua: {', '.join(missing)} missing ({INSTALL_HINT})")
    return files


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
