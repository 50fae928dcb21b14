"""An engine that costs almost nothing: nginx with one fixed event stream for every request.

The simulator is Python and on two cores takes most of a round's time; before this one, what is
measured is the way to it.
"""

from pathlib import Path

from tests.bench.nginx import Nginx
from tests.harness.node import free_port

FRAMES = 3
"""Events of the answer, beside the terminator: as many as the simulator is asked for."""

EVENT = r'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","model":"stub",'
EVENT += r'"choices":[{"index":0,"delta":{"content":"fever"},"finish_reason":null}]}\n\n'

# nginx knows \n in a string of its configuration; keepalive_requests without an end, lest a
# round meet connections that are being closed.
HTTP = """\
    keepalive_requests 100000000;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            default_type "text/event-stream; charset=utf-8";
            return 200 '{body}';
        }}
    }}"""


def start_stub(folder: Path) -> Nginx:
    """The stub; it answers any path."""
    port = free_port()
    body = EVENT * FRAMES + r"data: [DONE]\n\n"
    return Nginx(folder, port, HTTP.format(port=port, body=body), 1)
