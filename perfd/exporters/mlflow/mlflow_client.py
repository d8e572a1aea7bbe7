"""The few calls of MLflow's REST API 2.0 that the exporter needs (docs/adr/0024).

https://mlflow.org/docs/latest/api_reference/rest-api.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from perfd.config import HttpClientConfig
from perfd.exporters.http_post import Poster

_PATH = "/api/2.0/mlflow/"
_HEADERS = {"Content-Type": "application/json"}
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""A run comes back with all its tags and parameters, of 8,000 characters each at most."""
KEY_TAG = "perfd.key"
"""The tag by which perfd finds a run again."""


class MlflowError(OSError):
    """The server did not answer, or refused. `permanent`: the same request would be refused again."""

    def __init__(self, reason: str, *, permanent: bool) -> None:
        super().__init__(reason)
        self.permanent = permanent


class Metric(msgspec.Struct, frozen=True):
    """One value of a metric."""

    key: str
    value: float
    timestamp: int
    """Unix time in ms."""
    step: int


class MlflowClient:
    """One server and account. All methods raise `MlflowError`; none takes longer than a few `timeout_s`."""

    def __init__(self, url: str, http: HttpClientConfig, *, key: str) -> None:
        self._poster = Poster(url.rstrip("/") + _PATH, http, key=key, max_answer_bytes=_MAX_ANSWER_BYTES)

    def experiment_id(self, name: str) -> str:
        """The id of an experiment, which is created if there is none."""
        try:
            return str(self._post("experiments/create", {"name": name})["experiment_id"])
        except MlflowError as error:
            if "RESOURCE_ALREADY_EXISTS" not in str(error):
                raise
        # MLflow's filters cannot escape a quote; `_` matches any character.
        pattern = re.sub(r"['\"`\\%]", "_", name)
        asked = {"filter": f"name LIKE '{pattern}'", "max_results": 1_000, "view_type": "ACTIVE_ONLY"}
        for experiment in self._post("experiments/search", asked).get("experiments", ()):
            if experiment["name"] == name:
                return str(experiment["experiment_id"])
        raise MlflowError(f"the experiment {name!r} was deleted", permanent=False)

    def running(self, experiment_id: str, key: str) -> str | None:
        """The id of the run with this key that has not ended."""
        asked = {
            "experiment_ids": [experiment_id],
            "filter": f"tags.\"{KEY_TAG}\" = '{key}' AND attributes.status = 'RUNNING'",
            "max_results": 1,
        }
        for run in self._post("runs/search", asked).get("runs", ()):
            return str(run["info"]["run_id"])
        return None

    def create(self, experiment_id: str, name: str, begin_unix_s: float, tags: Mapping[str, str]) -> str:
        """The id of a new run."""
        asked = {
            "experiment_id": experiment_id,
            "run_name": name,
            "start_time": round(begin_unix_s * 1e3),
            "tags": _pairs(tags),
        }
        return str(self._post("runs/create", asked)["run"]["info"]["run_id"])

    def log(
        self,
        run_id: str,
        *,
        metrics: Sequence[Metric] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Add to a run; at most 1,000 metrics, 100 parameters and 100 tags. A repeat changes nothing."""
        asked = {
            "run_id": run_id,
            "metrics": list(metrics),
            "params": _pairs(params or {}),
            "tags": _pairs(tags or {}),
        }
        self._post("runs/log-batch", asked)

    def end(self, run_id: str, status: str, end_unix_s: float) -> None:
        """End a run: FINISHED, FAILED or KILLED."""
        asked = {"run_id": run_id, "status": status, "end_time": round(end_unix_s * 1e3)}
        self._post("runs/update", asked)

    def close(self) -> None:
        """Close the connection."""
        self._poster.close()

    def _post(self, call: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._poster.post(msgspec.json.encode(asked), _HEADERS, path=call)
        if answer.taken:
            try:
                found: dict[str, Any] = msgspec.json.decode(answer.text or "{}", type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise MlflowError(f"{call}: not an answer of MLflow: {error}", permanent=False) from error
            return found
        # Credentials are read again for each request, and may be right by then; so may be a proxy's routes.
        missing = answer.status == HTTPStatus.NOT_FOUND and "RESOURCE_DOES_NOT_EXIST" in answer.text
        permanent = missing or answer.status == HTTPStatus.BAD_REQUEST
        status = answer.status or "no answer"
        raise MlflowError(f"{call}: {status} {answer.text[:300]}".strip(), permanent=permanent)


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]
