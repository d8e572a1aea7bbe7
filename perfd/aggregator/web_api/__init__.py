"""The HTTP interface of the aggregator: its routes, and the documents and pages that they answer with."""

from perfd.aggregator.web_api.agent_gaps import running_by_node
from perfd.aggregator.web_api.api_documents import (
    agent_json,
    fleet_json,
    gpu_readings,
    job_json,
    step_lines,
    steps_of_lines,
)
from perfd.aggregator.web_api.api_routes import routes
from perfd.aggregator.web_api.charts import gpu_columns, progress_columns, together, trend, without_ranks
from perfd.aggregator.web_api.compare_routes import compare_routes, with_kernels
from perfd.aggregator.web_api.fleet_pages import fleet_page, with_stored
from perfd.aggregator.web_api.runbook_routes import runbook_routes
from perfd.aggregator.web_api.saved_run import PAGE_FILE, SavedRun, save_run
from perfd.aggregator.web_api.serving_documents import servers_json
from perfd.aggregator.web_api.silence_routes import silence_routes
from perfd.aggregator.web_api.stored_jobs import stored_entry, stored_row
from perfd.aggregator.web_api.webhook import Webhook

__all__ = [
    "PAGE_FILE",
    "SavedRun",
    "Webhook",
    "agent_json",
    "compare_routes",
    "fleet_json",
    "fleet_page",
    "gpu_columns",
    "gpu_readings",
    "job_json",
    "progress_columns",
    "routes",
    "runbook_routes",
    "running_by_node",
    "save_run",
    "servers_json",
    "silence_routes",
    "step_lines",
    "steps_of_lines",
    "stored_entry",
    "stored_row",
    "together",
    "trend",
    "with_kernels",
    "with_stored",
    "without_ranks",
]
