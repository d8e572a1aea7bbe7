"""The tables of the history file, and the SQL that writes them."""

from __future__ import annotations

from perfd.aggregator.history.history_rows import NODE_MEMORY_S, STEP_COLUMNS, RowKind

SCHEMA_VERSION = 6
"""`PRAGMA user_version` of the file. A later version adds tables and columns, and migrates."""

MIGRATIONS = {
    1: "ALTER TABLE alerts ADD COLUMN body BLOB",
    2: "CREATE TABLE IF NOT EXISTS retention (id INTEGER PRIMARY KEY CHECK (id = 1), unix_s REAL NOT NULL)",
    3: "ALTER TABLE agents ADD COLUMN epoch TEXT NOT NULL DEFAULT ''",
    4: (
        "CREATE TABLE IF NOT EXISTS node_memory (node TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, "
        "unix_s REAL NOT NULL, body TEXT NOT NULL, PRIMARY KEY (node, kind, key)) WITHOUT ROWID"
    ),
    5: "CREATE TABLE IF NOT EXISTS exporters (exporter TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID",
}
"""From each version to the next."""

ADDED_COLUMNS = {"alerts": (None,), "agents": ("",)}
"""The last columns of tables that rows of an older perfd lack, by their defaults."""

FACT_KINDS = frozenset({"gpu", "server", "rank", "origin"})
MEMORY_KINDS = frozenset({"node", "incident", "drain"})
"""What `kind` may be in `node_facts` and `node_memory`, which are alike otherwise."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, started_unix_s REAL, received_unix_s REAL NOT NULL,
  description TEXT, summary TEXT, PRIMARY KEY (job, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL, time_unix_s REAL, step_time_s REAL,
  steps_covered INTEGER NOT NULL, warmup INTEGER NOT NULL, flops_per_s_per_gpu REAL, tokens_per_s REAL,
  samples_per_s REAL, global_batch_size INTEGER, losses TEXT NOT NULL,
  PRIMARY KEY (job, attempt, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS phases (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL, time_unix_s REAL NOT NULL,
  phases TEXT NOT NULL, PRIMARY KEY (job, attempt, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, node TEXT NOT NULL, time_unix_s REAL NOT NULL,
  kind TEXT NOT NULL, body TEXT NOT NULL, UNIQUE (job, node, time_unix_s, kind, body));
CREATE TABLE IF NOT EXISTS alerts (
  job TEXT NOT NULL, name TEXT NOT NULL, labels TEXT NOT NULL, state TEXT NOT NULL, first_step INTEGER,
  started_unix_s REAL NOT NULL, changed_unix_s REAL NOT NULL, body BLOB,
  PRIMARY KEY (name, labels, started_unix_s)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS engine (
  id INTEGER PRIMARY KEY CHECK (id = 1), body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS exporters (
  exporter TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS retention (
  id INTEGER PRIMARY KEY CHECK (id = 1), unix_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS node_facts (
  node TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, received_unix_s REAL NOT NULL,
  body TEXT NOT NULL, PRIMARY KEY (node, kind, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS node_memory (
  node TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, unix_s REAL NOT NULL, body TEXT NOT NULL,
  PRIMARY KEY (node, kind, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS agents (
  agent_id TEXT PRIMARY KEY, node TEXT NOT NULL, last_sequence INTEGER NOT NULL,
  received_unix_s REAL NOT NULL, epoch TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS captures (
  capture_id TEXT PRIMARY KEY, requested_unix_s REAL NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS events_by_job ON events (job, attempt, time_unix_s);
"""

_OF_EXPIRED = "(job, attempt) IN (SELECT job, attempt FROM jobs WHERE received_unix_s < ?1)"
"""Their own times are of agents' clocks, which may be wrong by decades."""
EXPIRED = (
    f"DELETE FROM steps WHERE {_OF_EXPIRED}",  # noqa: S608  (constants, as below)
    f"DELETE FROM phases WHERE {_OF_EXPIRED}",  # noqa: S608
    f"DELETE FROM events WHERE {_OF_EXPIRED}",  # noqa: S608
    "DELETE FROM alerts WHERE changed_unix_s < ?1",
    "DELETE FROM captures WHERE requested_unix_s < ?1",
    "DELETE FROM node_facts WHERE received_unix_s < ?1",
    f"DELETE FROM node_memory WHERE unix_s < ?1 - {NODE_MEMORY_S}",  # noqa: S608  (a constant)
    "DELETE FROM agents WHERE received_unix_s < ?1",
    "DELETE FROM jobs WHERE received_unix_s < ?1",
)
"""What is older than a time leaves by these, in this order."""

WRITES = {
    RowKind.JOB: (
        "INSERT INTO jobs (job, attempt, started_unix_s, received_unix_s) VALUES (?, ?, ?, ?) "
        # A clock that is set back for a moment makes no job old.
        "ON CONFLICT DO UPDATE SET received_unix_s = max(received_unix_s, excluded.received_unix_s)"
    ),
    RowKind.DESCRIPTION: "UPDATE jobs SET description = ? WHERE job = ? AND attempt = ?",
    RowKind.SUMMARY: "UPDATE jobs SET summary = ? WHERE job = ? AND attempt = ?",
    RowKind.STEP: "INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    RowKind.PHASES: "INSERT OR REPLACE INTO phases VALUES (?, ?, ?, ?, ?)",
    RowKind.EVENT: "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?)",
    RowKind.FACT: "INSERT OR REPLACE INTO node_facts VALUES (?, ?, ?, ?, ?)",
    RowKind.AGENT: (
        "INSERT INTO agents VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET node = excluded.node, "
        "last_sequence = max(last_sequence, excluded.last_sequence), "
        "received_unix_s = max(received_unix_s, excluded.received_unix_s), epoch = excluded.epoch"
    ),
    RowKind.ALERT: "INSERT OR REPLACE INTO alerts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    RowKind.ENGINE: "INSERT OR REPLACE INTO engine VALUES (1, ?)",
    RowKind.EXPORTER: "INSERT OR REPLACE INTO exporters VALUES (?, ?)",
    RowKind.CAPTURE: "INSERT OR REPLACE INTO captures VALUES (?, ?, ?)",
    RowKind.NODE_MEMORY: "INSERT OR REPLACE INTO node_memory VALUES (?, ?, ?, ?, ?)",
    RowKind.RETENTION: "INSERT OR REPLACE INTO retention VALUES (1, ?)",
}
"""The SQL of each kind but `EXPIRED`."""

NEWEST_STEPS = (
    # Of a group SQLite returns the row that has the maximum.
    f"SELECT {STEP_COLUMNS}, max(attempt) FROM steps "  # noqa: S608  (a constant)
    "WHERE job = ? AND step >= ? GROUP BY step ORDER BY step LIMIT ?"
)
