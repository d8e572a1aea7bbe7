"""Schemas of answers of the HTTP API that servers write and verbs read; docs/api.md has their keys.

Documents that only one place names, or that are also files, have their schema where they are written.
"""

from __future__ import annotations

AGENTS = "perfd.agents/1"
ALERTS = "perfd.alerts/1"
FLEET = "perfd.fleet/2"
GROUP = "perfd.group/1"
JOBS = "perfd.jobs/2"
NODES = "perfd.nodes/1"
RANKS = "perfd.ranks/1"
SERIES = "perfd.series/1"
SERVERS = "perfd.servers/2"
STATUS = "perfd.status/1"
"""Of an aggregator's problems, and of what `perfd status --json` prints."""
