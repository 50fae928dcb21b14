"""``/ui/``: the dashboard's files. They are open to everybody; the data they ask for are not."""

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import falcon

from control.api.problems import problem
from control.api.routes import Operation, Reply, Route
from control.places import WWW

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
SHARED = ("sse.js", "language.js", "icon.svg")
"""What the chat page has as well."""
HEADERS = {
    # Asked for anew each time and mostly answered 304: modules of two versions do not mix.
    "Cache-Control": "no-cache",
    # Nothing from elsewhere, nothing inline: a name that holds markup can never run.
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class File(NamedTuple):
    """A file as it is served."""

    kind: str
    data: bytes
    etag: str


class Ui:
    """``/ui/`` and ``/ui/{name}``: one list of files, read once. A name is looked up in it, and
    never in a folder. ``/`` and ``/ui`` lead there."""

    def __init__(self, www: Path = WWW) -> None:
        paths = [*(www / "ui").iterdir(), *(www / name for name in SHARED)]
        self._files = {path.name: _read(path) for path in paths if path.suffix in KINDS}

    def on_get(self, req: falcon.Request, resp: falcon.Response, name: str = "index.html") -> None:
        file = self._files.get(name)
        if file is None:
            raise problem(falcon.HTTP_404, "file_not_found", "the dashboard is at /ui/")
        resp.set_headers(HEADERS)
        resp.set_header("ETag", file.etag)
        if _has(req, file.etag):
            resp.status = falcon.HTTP_304
            return
        resp.content_type = file.kind
        resp.data = file.data

    def on_get_outside(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Relative, so that it is right behind a proxy's prefix as well."""
        raise falcon.HTTPFound("ui/")


def ui_routes() -> tuple[Route, ...]:
    """The dashboard's own routes. They are no API, and so in no document."""
    ui = Ui()
    file = Operation(None, "A file of the dashboard", {200: Reply("The file")}, ("file_not_found",))
    to_it = Operation(None, "To the dashboard", {302: Reply("Its address")})
    return (
        Route("/ui/", ui, {"GET": file}),
        Route("/ui/{name}", ui, {"GET": file}),
        Route("/ui", ui, {"GET": to_it}, suffix="outside"),
        Route("/", ui, {"GET": to_it}, suffix="outside"),
    )


def _read(path: Path) -> File:
    data = path.read_bytes()
    return File(KINDS[path.suffix], data, f'"{sha256(data).hexdigest()[:16]}"')


def _has(req: falcon.Request, etag: str) -> bool:
    """Whether the browser holds it."""
    asked = req.get_header("If-None-Match") or ""
    return etag in (part.strip().removeprefix("W/") for part in asked.split(","))
