"""Answers to assistants through the Model Context Protocol, made of documents of an aggregator's API.

`server` and `http_server` alone import the package `mcp`, which is an extra.
"""
