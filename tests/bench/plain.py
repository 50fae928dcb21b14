"""What Weir is compared with: nginx as one would write it without Weir.

Its settings are those of Weir's templates as far as they bear on speed (``nginx/*.j2``), without
Lua and without an access log.
"""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench.nginx import Nginx
from tests.harness.node import free_port

WORKERS = 2

UPSTREAM = """\
    upstream {name} {{
        server {address} max_fails=0;
        keepalive 64;
        keepalive_timeout 4s;
        keepalive_requests 10000;
    }}"""

SERVER = """\
    client_max_body_size 20m;
    keepalive_requests 10000;
    server {{
        listen 127.0.0.1:{port} reuseport backlog=4096;
{locations}
    }}"""

LOCATION = """\
        location = {path} {{
            proxy_pass http://{name};
            proxy_http_version 1.1;
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_cache off;
            proxy_read_timeout 180s;
            proxy_send_timeout 180s;
            proxy_connect_timeout 2s;
            send_timeout 30s;
            proxy_set_header Host $host;
            proxy_set_header Connection "";
            proxy_set_header Accept-Encoding "";
        }}"""


def start_plain(folder: Path, engines: Mapping[str, str]) -> Nginx:
    """Plain nginx before ``engines``, URLs by the path they serve."""
    port = free_port()
    names = {path: f"engine{n}" for n, path in enumerate(engines)}
    upstreams = [
        UPSTREAM.format(name=names[path], address=urlsplit(url).netloc)
        for path, url in engines.items()
    ]
    locations = [LOCATION.format(path=path, name=names[path]) for path in engines]
    http = "\n".join([*upstreams, SERVER.format(port=port, locations="\n".join(locations))])
    return Nginx(folder, port, http, WORKERS)
