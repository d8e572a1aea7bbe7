"""Routes of the page: every view is one document, everything else is a file beside this one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import PurePosixPath
from urllib.parse import unquote

from perfd.net import Handler, Request, Response

_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_DOCUMENT = "index.html"
_VIEWS = ("/", "/servers", "/agents", "/nodes", "/alerts", "/compare")
_ROOT = b'<html lang="en">'

# Names, labels and reasons come from jobs. The page writes them as text only; this guards it twice.
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A page of an older perfd must not talk to a newer one.
    "Cache-Control": "no-cache",
}


def page_routes(known: Callable[[str], bool], saved_unix_s: float | None = None) -> dict[str, Handler]:
    """The page for `perfd.net.http.HttpServer`; `known` says whether there is a job of a name.

    With `saved_unix_s` the page shows that it was saved then, and never looks for newer numbers.
    All files are read here, once, so a request can name only what was packaged.
    """
    assets = _assets()
    document = assets[_DOCUMENT]
    if saved_unix_s is not None:
        document = document.replace(_ROOT, b'%s data-saved="%d">' % (_ROOT[:-1], saved_unix_s), 1)

    def page(request: Request, status: int = 200) -> Response:
        # Relative, so that a proxy may serve all of this below another path.
        up = b"../" * (request.path.count("/") - 1)
        body = document.replace(b'="static/', b'="%sstatic/' % up).replace(b'href="./"', b'href="%s./"' % up)
        return _file(_DOCUMENT, body, status=status)

    def job(request: Request) -> Response:
        # The document itself says that there is no such job; the status is for programs.
        name = unquote(request.rest.partition("/")[0])
        return page(request, 200 if known(name) else 404)

    def static(request: Request) -> Response:
        body = assets.get(request.rest)
        if body is None:
            return Response(
                body=b"There is no such file.\n",
                status=404,
                content_type="text/plain; charset=utf-8",
                headers=SECURITY_HEADERS,
            )
        return _file(request.rest, body)

    return {**dict.fromkeys(_VIEWS, page), "/jobs/": job, "/static/": static}


def _assets() -> dict[str, bytes]:
    folders = [resources.files("perfd.web") / name for name in ("vendor", "static")]
    return {
        entry.name: entry.read_bytes()
        for folder in folders
        for entry in folder.iterdir()
        if PurePosixPath(entry.name).suffix in _TYPES
    }


def _file(name: str, body: bytes, status: int = 200) -> Response:
    kind = _TYPES[PurePosixPath(name).suffix]
    # Weak: with gzip the bytes are others.
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Response(body=body, status=status, content_type=kind, headers={**SECURITY_HEADERS, "ETag": etag})
