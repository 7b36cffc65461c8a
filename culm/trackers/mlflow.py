"""MLflow: a run in an experiment that is called as the job."""

import os
from collections.abc import Sequence

from culm.trackers.scalars import Scalar
from culm.trackers.tracker import TrackedRun

os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder is asked for by its URI alone

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

ID = "culm.run"  # the tag by which another coordinator finds the run
MOST_METRICS, MOST_PARAMS, LONGEST_PARAM = 1000, 100, 500  # that MLflow takes at once


class MLflow:
    """``where``: the tracking URI, such as ``sqlite:///mlflow.db`` or ``http://host:5000``."""

    def __init__(self, where: str, run: TrackedRun) -> None:
        self._client = MlflowClient(tracking_uri=where)
        experiment = self._client.get_experiment_by_name(run.name)
        of = experiment.experiment_id if experiment is not None else self._client.create_experiment(run.name)
        found = self._client.search_runs([of], f"tags.`{ID}` = '{run.id}'")
        if found:
            self._run = found[0].info.run_id
        else:
            self._run = self._client.create_run(of, tags={ID: run.id}, run_name=run.id).info.run_id
            params = [Param(name, str(value)[:LONGEST_PARAM]) for name, value in run.config.items()]
            for first in range(0, len(params), MOST_PARAMS):
                self._client.log_batch(self._run, params=params[first : first + MOST_PARAMS])

    def newest(self, name: str) -> int:
        return max((metric.step for metric in self._client.get_metric_history(self._run, name)), default=-1)

    def write(self, scalars: Sequence[Scalar]) -> None:
        metrics = [Metric(s.name, s.value, int(s.time * 1000), s.step) for s in scalars]
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[first : first + MOST_METRICS])

    def close(self, done: bool) -> None:
        if done:
            self._client.set_terminated(self._run)
