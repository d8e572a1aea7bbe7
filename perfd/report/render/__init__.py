"""Writes a report as Markdown, HTML, SVG or PNG.

Modules are imported one by one: Markdown needs no HTML.
"""
