"""The gate of the data plane where nodes elsewhere reach it."""

import falcon

from control.api.tokens import BearerTokens

OPEN_PATHS = ("/healthz", "/readyz")


class NodeGate:
    """Falcon middleware: in come those who show one of the nodes' tokens. With none configured
    the listener's TLS has asked for a certificate, or it is this machine's alone."""

    def __init__(self, tokens: BearerTokens) -> None:
        self._tokens = tokens

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Before the route is looked up."""
        if self._tokens and req.path not in OPEN_PATHS:
            self._tokens.owner(req)
