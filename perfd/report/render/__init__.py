"""Writes a report as text, Markdown, HTML or SVG."""
