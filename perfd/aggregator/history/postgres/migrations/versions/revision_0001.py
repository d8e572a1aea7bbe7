"""The tables as they were first: rows of steps, phases and events by the day on which their attempt began."""

from alembic import op

revision = "0001"
down_revision = None

_TABLES = """
CREATE TABLE jobs (
  job text NOT NULL, attempt bigint NOT NULL, began_on date NOT NULL, started_unix_s double precision,
  received_unix_s double precision NOT NULL, description text, summary text,
  PRIMARY KEY (job, attempt)) WITH (fillfactor = 70);
CREATE TABLE step_rows (
  began_on date NOT NULL, job text NOT NULL, attempt bigint NOT NULL, step bigint NOT NULL,
  time_unix_s double precision, step_time_s double precision, steps_covered bigint NOT NULL,
  warmup smallint NOT NULL, flops_per_s_per_gpu double precision, tokens_per_s double precision,
  samples_per_s double precision, global_batch_size bigint, losses text NOT NULL,
  PRIMARY KEY (job, attempt, step, began_on)) PARTITION BY RANGE (began_on);
CREATE TABLE phase_rows (
  began_on date NOT NULL, job text NOT NULL, attempt bigint NOT NULL, step bigint NOT NULL,
  time_unix_s double precision NOT NULL, phases text NOT NULL,
  PRIMARY KEY (job, attempt, step, began_on)) PARTITION BY RANGE (began_on);
CREATE TABLE event_rows (
  began_on date NOT NULL, job text NOT NULL, attempt bigint NOT NULL, event_id bytea NOT NULL,
  node text NOT NULL, time_unix_s double precision NOT NULL, kind text NOT NULL, body text NOT NULL,
  PRIMARY KEY (job, event_id, began_on)) PARTITION BY RANGE (began_on);
CREATE TABLE alerts (
  alert_id bytea NOT NULL, job text NOT NULL, name text NOT NULL, labels text NOT NULL, state text NOT NULL,
  first_step bigint, started_unix_s double precision NOT NULL, changed_unix_s double precision NOT NULL,
  body bytea, PRIMARY KEY (alert_id, started_unix_s));
CREATE TABLE engine (id smallint PRIMARY KEY CHECK (id = 1), body bytea NOT NULL) WITH (fillfactor = 50);
CREATE TABLE exporters (exporter text PRIMARY KEY, body bytea NOT NULL);
CREATE TABLE retention (id smallint PRIMARY KEY CHECK (id = 1), unix_s double precision NOT NULL);
CREATE TABLE writer (id smallint PRIMARY KEY CHECK (id = 1), generation bigint NOT NULL);
CREATE TABLE node_facts (
  node text NOT NULL, kind text NOT NULL, key text NOT NULL, received_unix_s double precision NOT NULL,
  body text NOT NULL, PRIMARY KEY (node, kind, key));
CREATE TABLE node_memory (
  node text NOT NULL, kind text NOT NULL, key text NOT NULL, unix_s double precision NOT NULL,
  body text NOT NULL, PRIMARY KEY (node, kind, key));
CREATE TABLE agents (
  agent_id text PRIMARY KEY, node text NOT NULL, last_sequence bigint NOT NULL,
  received_unix_s double precision NOT NULL, epoch text NOT NULL) WITH (fillfactor = 50);
CREATE TABLE captures (
  capture_id text PRIMARY KEY, requested_unix_s double precision NOT NULL, body text NOT NULL);
INSERT INTO writer VALUES (1, 0);
"""
_VIEWS = """
CREATE VIEW {name}s AS SELECT kept.* FROM {name}_rows AS kept
  JOIN jobs USING (job, attempt, began_on);
COMMENT ON VIEW {name}s IS 'Without rows of attempts that have expired: their partition is dropped later.';
"""


def upgrade() -> None:
    """From nothing."""
    op.execute(_TABLES)
    for name in ("step", "phase", "event"):
        op.execute(_VIEWS.format(name=name))
