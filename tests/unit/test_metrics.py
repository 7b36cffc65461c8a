"""What the services tell Prometheus, from given readings, statuses and event logs."""

import json
import math
import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from culm.__main__ import MODULES
from culm.coordinator.edges.run_metrics import RunCollector, Tally
from culm.pipeline.money.codec import Reader
from culm.pipeline.resources import Resources
from culm.pipeline.rpc.exposition import Exposition, parse_listen
from culm.pipeline.times import TimeSplit
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.watching.node_metrics import NodeCollector, Reading

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
READING = Reading(
    node="n0",
    times=TimeSplit(forward=1.0, backward=2.0, redundant=0.0, apply=0.5, bubble=3.0, idle=4.0),
    sent_bytes={"n1": 10, "n2": 20},
    received_bytes={"n3": 30},
    version=7,
    mailbox=5,
    outbox=6,
    finished=84,
    spilled_bytes=9,
)

OF_RESOURCES = (
    "culm_cpu_seconds_total",
    "culm_processors",
    "culm_resident_bytes",
    "culm_memory_bytes",
    "culm_accelerator_busy_ratio",
    "culm_accelerator_used_bytes",
    "culm_accelerator_bytes",
)


def samples(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """By name and label values, as a scraper reads them."""
    text = generate_latest(registry).decode()
    families = text_string_to_metric_families(text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_a_node_tells_what_it_was_doing() -> None:
    registry = CollectorRegistry()
    registry.register(NodeCollector(lambda: READING))
    assert samples(registry) == {
        ("culm_node_seconds_total", "n0", "forward"): 1.0,
        ("culm_node_seconds_total", "n0", "backward"): 2.0,
        ("culm_node_seconds_total", "n0", "redundant"): 0.0,
        ("culm_node_seconds_total", "n0", "apply"): 0.5,
        ("culm_node_seconds_total", "n0", "bubble"): 3.0,
        ("culm_node_seconds_total", "n0", "idle"): 4.0,
        ("culm_sent_bytes_total", "n0", "n1"): 10,
        ("culm_sent_bytes_total", "n0", "n2"): 20,
        ("culm_received_bytes_total", "n0", "n3"): 30,
        ("culm_instructions_total", "n0"): 84,
        ("culm_spilled_bytes_total", "n0"): 9,
        ("culm_version", "n0"): 7,
        ("culm_mailbox_tensors", "n0"): 5,
        ("culm_outbox_tensors", "n0"): 6,
    }


RESOURCES = Resources(
    seconds=10.0,
    cpu_seconds=5.0,
    processors=2.0,
    resident_bytes=100,
    memory_bytes=400,
    accelerator_busy=0.75,
    accelerator_used_bytes=30,
    accelerator_bytes=40,
)


def test_a_node_tells_what_its_process_takes() -> None:
    registry = CollectorRegistry()
    registry.register(NodeCollector(lambda: replace(READING, resources=RESOURCES)))
    told = samples(registry)
    assert {name: told[name, "n0"] for name, *_ in told if (name, "n0") in told and name in OF_RESOURCES} == {
        "culm_cpu_seconds_total": 5.0,
        "culm_processors": 2.0,
        "culm_resident_bytes": 100,
        "culm_memory_bytes": 400,
        "culm_accelerator_busy_ratio": 0.75,
        "culm_accelerator_used_bytes": 30,
        "culm_accelerator_bytes": 40,
    }


def test_a_node_without_an_accelerator_tells_of_none() -> None:
    registry = CollectorRegistry()
    seen = Resources(cpu_seconds=5.0)
    registry.register(NodeCollector(lambda: replace(READING, resources=seen)))
    assert not [name for name, *_ in samples(registry) if "accelerator" in name]


def test_a_node_that_has_no_job_yet_tells_nothing() -> None:
    registry = CollectorRegistry()
    registry.register(NodeCollector(lambda: None))
    assert samples(registry) == {}


class Run:
    """A status and an event log that grows, as the collector sees them."""

    def __init__(self, status: pb.GetStatusResponse) -> None:
        self.status = status
        self.tally, self.reader, self.number = Tally(), Reader("the run's metrics"), 0
        self.registry = CollectorRegistry()
        self.registry.register(RunCollector(self.look))

    def look(self) -> tuple[pb.GetStatusResponse, Sequence[Metric]]:
        return self.status, self.tally.collect()

    def happens(self, time: float, kind: str, **fields: str) -> None:
        self.number += 1
        event = pb.ListEventsResponse(sequence=self.number, time=time, kind=kind, fields=fields)
        self.reader.read(event, self.tally.take)

    def __getitem__(self, name: str | tuple[str, ...]) -> float:
        return samples(self.registry)[(name,) if isinstance(name, str) else name]


def test_the_status_as_metrics() -> None:
    status = pb.GetStatusResponse(
        step=3, steps=8, loss=1.5, samples_per_second=40.0, term=2, generation=5, checkpoint=2, cost=0.25
    )
    status.exposure[0], status.exposure[1] = 0.0, 2.5
    for state in ("active", "active", "spare"):
        status.nodes.add(state=state)
    run = Run(status)
    assert (run["culm_step"], run["culm_steps"], run["culm_loss"]) == (3, 8, 1.5)
    assert (run["culm_term"], run["culm_generation"], run["culm_checkpoint_step"]) == (2, 5, 2)
    assert (run["culm_samples_per_second"], run["culm_cost_dollars"]) == (40.0, 0.25)
    assert run["culm_exposure_seconds", "1"] == 2.5
    counts = {state: run["culm_nodes", state] for state in ("joining", "spare", "active", "draining", "detached")}
    assert counts == {"joining": 0, "spare": 1, "active": 2, "draining": 0, "detached": 0}


def test_a_run_that_stands_still_is_no_run_that_waits_for_nodes() -> None:
    stalled = Run(pb.GetStatusResponse(phase="running", stalled_seconds=12.5))
    assert (stalled["culm_stalled_seconds"], stalled["culm_waiting"]) == (12.5, 0)
    waiting = Run(pb.GetStatusResponse(phase="waiting"))
    assert (waiting["culm_stalled_seconds"], waiting["culm_waiting"]) == (0, 1)


def test_a_paused_run_whose_nodes_were_let_go_waits_for_none() -> None:
    pause = pb.Pause(why="its budget is spent")
    paused = Run(pb.GetStatusResponse(phase="waiting", pause=pause))
    assert (paused["culm_waiting"], paused["culm_paused"]) == (0, 1)
    with_nodes = Run(pb.GetStatusResponse(phase="paused", pause=pause))
    assert (with_nodes["culm_waiting"], with_nodes["culm_paused"]) == (0, 1)
    asked_for = Run(pb.GetStatusResponse(phase="running", pause=pause))
    assert asked_for["culm_paused"] == 0, "the step runs on"


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def of_the_run() -> set[str]:
    """The names of all metrics that a coordinator tells."""
    return {name for name, *_ in samples(Run(pb.GetStatusResponse(exposure={0: 1.0})).registry)}


def of_a_node() -> set[str]:
    registry = CollectorRegistry()
    registry.register(NodeCollector(lambda: replace(READING, resources=RESOURCES)))
    return {name for name, *_ in samples(registry)}


def test_alert_rules_name_metrics_that_there_are() -> None:
    named = {name for rule in alerts() for name in re.findall(r"culm_\w+", rule["expr"])}
    assert named
    assert named <= of_the_run(), named - of_the_run()


def test_the_dashboard_names_metrics_that_there_are() -> None:
    dashboard = (MONITORING / "grafana" / "dashboards" / "culm.json").read_text()
    panels = json.loads(dashboard)["panels"]
    named = {name for p in panels for t in p.get("targets", []) for name in re.findall(r"culm_\w+", t["expr"])}
    told = of_the_run() | of_a_node()
    assert named
    assert named <= told, named - told


def test_every_alert_says_what_to_do_and_stands_on_the_page() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    for rule in alerts():
        name, severity = rule["alert"], rule["labels"]["severity"]
        assert f"| `{name}` | {severity} |" in page
        summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
        assert summary.count(".") + summary.count(":") >= 2, f"{name}: what is wrong, and what to do"
        assert description
        for command in re.findall(r"\bculm ([a-z]+)\b", f"{summary} {description}"):
            assert command in MODULES, f"{name}: culm {command}"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_the_alerts_say_what_their_histories_expect() -> None:
    words = ["promtool", "test", "rules", "alerts_test.yml"]
    done = subprocess.run(words, cwd=MONITORING, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_wrong_with_checkpoints_is_a_metric() -> None:
    assert Run(pb.GetStatusResponse())["culm_checkpoint_fault"] == 0
    assert Run(pb.GetStatusResponse(checkpoint_fault="the storage is away"))["culm_checkpoint_fault"] == 1


def test_no_loss_is_not_a_number() -> None:
    assert math.isnan(Run(pb.GetStatusResponse(loss=math.nan))["culm_loss"])


def test_the_event_log_adds_up_however_often_it_is_read() -> None:
    run = Run(pb.GetStatusResponse())
    assert run["culm_lost_nodes_total"] == 0
    run.happens(100.0, "plan")
    run.happens(100.5, "commit", step="0", loss="1.0")
    assert (run["culm_step_seconds_count"], run["culm_step_seconds_sum"]) == (1, 0.5)
    run.happens(100.75, "lost", node="n1")
    run.happens(100.76, "plan")
    run.happens(101.0, "commit", step="1", loss="1.0")
    run.happens(101.0, "recovered", node="n1", stage="1", redone="6", resume_ms="20.0")
    assert (run["culm_step_seconds_count"], run["culm_step_seconds_sum"]) == (2, 1.0)
    assert (run["culm_lost_nodes_total"], run["culm_redone_instructions_total"]) == (1, 6)
    assert (run["culm_resume_seconds_count"], run["culm_resume_seconds_sum"]) == (1, 0.02)
    assert run["culm_resume_seconds_bucket", "0.01"] == 0
    assert run["culm_resume_seconds_bucket", "0.025"] == 1


def test_a_coordinator_that_takes_over_goes_on_from_the_sums_of_the_one_before() -> None:
    run, after = (Run(pb.GetStatusResponse()) for _ in range(2))
    run.happens(100.0, "plan")
    run.happens(100.5, "commit", step="0", loss="1.0")
    run.happens(100.75, "lost", node="n1")
    run.happens(101.0, "recovered", node="n1", stage="1", redone="6", resume_ms="20.0")
    after.tally = Tally.from_document(json.loads(json.dumps(run.tally.to_document())))
    for each in (run, after):
        each.happens(107.5, "commit", step="1", loss="1.0")  # a step that the one before saw beginning
        each.happens(108.0, "rollback", era="1", step="0")
    assert after["culm_step_seconds_sum"] == 7.5
    assert samples(after.registry) == pytest.approx(samples(run.registry), nan_ok=True)


def test_a_step_that_nobody_saw_beginning_is_not_timed() -> None:
    """Commits of a leader that died may be on no record; after a rollback the step is another."""
    run = Run(pb.GetStatusResponse())
    run.happens(100.0, "plan")
    run.happens(101.0, "commit", step="0", loss="1.0")
    run.happens(109.0, "commit", step="4", loss="1.0")
    assert run["culm_step_seconds_count"] == 1
    run.happens(111.0, "commit", step="5", loss="1.0")
    assert run["culm_step_seconds_sum"] == 3.0
    run.happens(120.0, "rollback", era="1", step="2")
    run.happens(130.0, "plan")
    run.happens(130.5, "commit", step="2", loss="1.0")
    assert run["culm_rollbacks_total"] == 1
    assert (run["culm_step_seconds_count"], run["culm_step_seconds_sum"]) == (3, 3.5)


def test_a_run_whose_nodes_were_all_let_go_after_a_checkpoint_has_lost_no_work() -> None:
    run = Run(pb.GetStatusResponse())
    run.happens(100.0, "rollback", era="1", step="2", work_lost="0")
    assert run["culm_rollbacks_total"] == 0
    run.happens(101.0, "rollback", era="2", step="2", work_lost="1")
    run.happens(102.0, "rollback", era="3", step="2")
    assert run["culm_rollbacks_total"] == 2, "an older log says nothing of it"


def test_a_pause_is_no_step() -> None:
    run = Run(pb.GetStatusResponse())
    run.happens(100.0, "plan")
    run.happens(101.0, "commit", step="0", loss="1.0")
    run.happens(101.0, "paused", who="me")
    run.happens(9_001.0, "unpaused", who="me")
    run.happens(9_002.0, "commit", step="1", loss="1.0")
    assert (run["culm_step_seconds_count"], run["culm_step_seconds_sum"]) == (2, 2.0)
    run.happens(9_002.5, "pausing", who="me")
    run.happens(9_003.5, "unpaused", who="me")
    run.happens(9_004.0, "commit", step="2", loss="1.0")
    assert run["culm_step_seconds_sum"] == 4.0, "the step ran on"
    run.happens(9_004.0, "paused", who="me")
    run.happens(9_005.0, "rollback", era="1", step="2")
    run.happens(9_010.0, "plan")
    run.happens(9_020.0, "unpaused", who="me")
    run.happens(9_021.0, "commit", step="2", loss="1.0")
    assert run["culm_step_seconds_sum"] == 5.0, "an era that begins in a pause trains once it is over"


def test_a_clock_that_was_set_back_does_no_harm() -> None:
    run = Run(pb.GetStatusResponse())
    run.happens(100.0, "plan")
    run.happens(90.0, "commit", step="0", loss="1.0")
    assert (run["culm_step_seconds_count"], run["culm_step_seconds_sum"]) == (1, 0.0)


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":0", ("127.0.0.1", 0)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_only_who_is_named_can_reach_the_metrics(listen: str, address: tuple[str, int]) -> None:
    assert parse_listen(listen) == address


@pytest.mark.parametrize("listen", ["", "localhost", "localhost:", "127.0.0.1:http", ":70000"])
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(ValueError, match="give HOST:PORT"):
        parse_listen(listen)


def test_metrics_are_served_over_http() -> None:
    exposition = Exposition("127.0.0.1:0")
    try:
        exposition.registry.register(RunCollector(lambda: (pb.GetStatusResponse(step=4), ())))
        with urllib.request.urlopen(f"http://{exposition.address}/metrics", timeout=10.0) as response:
            assert "culm_step 4.0" in response.read().decode()
    finally:
        exposition.close()


def test_a_port_in_use_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot serve metrics on {listen}: port in use; choose another with --m"):
            Exposition(listen)
