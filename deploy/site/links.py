"""A hook of MkDocs: files outside docs/ are not on the site, so links to them become their names."""

import re

from mkdocs.structure.pages import Page

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?!adr/)([\w./-]+)\)")


def on_page_markdown(markdown: str, /, *, page: Page, **_: object) -> str:
    """The page's text, with `[words](../deploy/file)` as `deploy/file`."""
    depth = page.file.src_uri.count("/")

    def name(match: re.Match[str]) -> str:
        ups = match[0].split("](", 1)[1].count("../")
        return f"`{match[2]}`" if ups > depth else match[0]

    return _OUTSIDE.sub(name, markdown)
