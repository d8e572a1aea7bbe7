"""Small HTML pages that can do nothing but be read, and whose charts zoom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from perfd.net import Response
from perfd.report.render.page_script import SCRIPT_SOURCE

# A report may contain names from jobs: it can be shown, also inside perfd's page, but can run nothing except
# the script that perfd writes into it, by its hash, which gets no origin.
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {SCRIPT_SOURCE}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def html_response(body: bytes, status: int = 200) -> Response:
    """A page as a response."""
    return Response(body=body, status=status, content_type="text/html; charset=utf-8", headers=_HEADERS)


def html_document(title: str, paragraphs: Sequence[str]) -> bytes:
    """A page of paragraphs, which are HTML; the title is text."""
    inner = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>:root{{color-scheme:light dark}}"
        "body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:12vh auto;padding:0 1rem}"
        "code{white-space:pre-wrap;overflow-wrap:anywhere}</style>"
        f"</head><body><h1>{escape(title)}</h1>{inner}</body></html>\n"
    ).encode()


def message_page(status: int, title: str, *sentences: str) -> Response:
    """Sentences, which are text."""
    return html_response(html_document(title, [escape(sentence) for sentence in sentences]), status)
