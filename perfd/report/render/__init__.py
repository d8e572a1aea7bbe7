"""Writes a report as text, Markdown, HTML or SVG.

Modules are imported one by one: text for a terminal needs no HTML.
"""
