"""A real run, scraped as Prometheus does it: the numbers are the run's, and the names are those that are documented."""

import json
import re
import socket
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import Job, load_job
from culm.pipeline.times import TimeSplit
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.client import connect
from culm.terminal.outcome import Outcome
from tests.integration.test_command_line import DIGITS, culm, the_one_line

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
ANNOUNCED = re.compile(r"^metrics at (\S+)$", re.MULTILINE)
STEPS, MICROBATCHES = 12, 4
NODES = ("n0", "n1", "n2")
SECONDS = "culm_node_seconds_total"


@dataclass
class Scraped:
    """What every process of a calm run told once all steps were applied, and what the coordinator said of it."""

    outcome: Outcome
    status: pb.GetStatusResponse
    families: dict[str, list[Metric]]  # by process

    def value(self, process: str, name: str, **labels: str) -> float:
        """The one sample of the name with these labels, among others."""
        (value,) = [
            s.value
            for family in self.families[process]
            for s in family.samples
            if s.name == name and labels.items() <= s.labels.items()
        ]
        return value


def applied(stub: CoordinatorStub) -> pb.GetStatusResponse:
    """The status once the heartbeats have told that all is applied."""
    while True:
        status = stub.GetStatus(pb.GetStatusRequest(), timeout=10.0)
        if all(node.version == STEPS for node in status.nodes):
            return status


def scrape(log: Path) -> list[Metric]:
    url = ANNOUNCED.findall(log.read_text())[-1]
    with urllib.request.urlopen(url, timeout=30.0) as response:
        return list(text_string_to_metric_families(response.read().decode()))


def settled(log: Path) -> list[Metric]:
    """What a process tells once nobody waits for a tensor of its any more."""
    waiting = ("culm_mailbox_tensors", "culm_outbox_tensors")
    while True:
        families = scrape(log)
        if not any(sample.value for family in families if family.name in waiting for sample in family.samples):
            return families


@pytest.fixture(scope="module")
def job() -> Job:
    changes = [f"job.steps={STEPS}", "pipeline.stages=3", f"pipeline.microbatches={MICROBATCHES}", "data.microbatch=8"]
    return load_job(ROOT / "examples" / "digits_mlp.toml", changes)


@pytest.fixture(scope="module")
def scraped(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Scraped:
    processes = ("coordinator", *NODES)
    environments = {name: {"CULM_METRICS": "127.0.0.1:0"} for name in processes}
    folder = tmp_path_factory.mktemp("metrics") / "run"
    with LocalCluster(
        job, ROOT / "examples", len(NODES), folder=folder, patience=20.0, environments=environments
    ) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
        channel, stub = connect(cluster.address)
        with channel:
            status = applied(stub)
        return Scraped(outcome, status, {name: settled(folder / f"{name}.log") for name in processes})


def test_the_coordinator_tells_how_the_run_went(scraped: Scraped, job: Job) -> None:
    def told(name: str, **labels: str) -> float:
        return scraped.value("coordinator", name, **labels)

    assert told("culm_step") == told("culm_steps") == STEPS
    assert told("culm_loss") == scraped.outcome.losses[-1]
    assert told("culm_step_seconds_count") == STEPS
    assert 0 < told("culm_step_seconds_sum") < scraped.outcome.seconds, "from the first plan to the last commit"
    assert told("culm_nodes", state="active") == len(NODES)
    assert [told("culm_exposure_seconds", stage=str(s)) for s in range(3)] == [0.0, 0.0, 0.0]
    assert told("culm_lost_nodes_total") == told("culm_rollbacks_total") == told("culm_redone_instructions_total") == 0
    assert told("culm_term") == 1
    assert told("culm_generation") == scraped.status.generation
    assert told("culm_cost_dollars") == scraped.status.cost


@pytest.mark.parametrize("node", NODES)
def test_a_node_tells_what_it_did(node: str, scraped: Scraped) -> None:
    def told(name: str, **labels: str) -> float:
        return scraped.value(node, name, node=node, **labels)

    assert told("culm_instructions_total") == STEPS * 2 * MICROBATCHES
    assert told("culm_version") == STEPS
    seconds = {f.name: told(SECONDS, phase=f.name) for f in fields(TimeSplit)}
    assert all(seconds.values()), "every one has a standby's layers too, to which it applies steps"


def test_what_one_node_received_another_sent(scraped: Scraped) -> None:
    for node in scraped.status.nodes:
        assert node.sent_bytes
        for peer, count in node.sent_bytes.items():
            assert scraped.value(node.id, "culm_sent_bytes_total", peer=peer) == count
            # What a broken stream took along was sent again; on a busy machine one may break.
            assert 0 < scraped.value(peer, "culm_received_bytes_total", peer=node.id) <= count


def test_the_status_has_the_same_split(scraped: Scraped) -> None:
    for node in scraped.status.nodes:
        for field in fields(TimeSplit):
            told, later = getattr(node.times, field.name), scraped.value(node.id, SECONDS, phase=field.name)
            # These may have gone on until the scrape. A standby's copy may take the last step after its own layers did.
            if field.name in ("apply", "redundant", "idle"):
                assert 0 < told <= later
            else:
                assert told == later, f"{node.id}: {field.name}"


def test_rpcs_are_counted(scraped: Scraped) -> None:
    attend = {"grpc_service": "culm.v1.Coordinator", "grpc_method": "Attend", "grpc_type": "bidi_stream"}
    assert scraped.value("coordinator", "grpc_server_started_total", **attend) >= len(NODES)
    commits = STEPS * len(NODES)
    assert scraped.value("coordinator", "grpc_server_msg_sent_total", **attend) >= commits
    fetch = {"grpc_service": "culm.v1.Stage", "grpc_method": "Fetch", "grpc_type": "server_stream"}
    for node in NODES:
        # Not Deliver: the streams of one machine are sockets (``local_streams``).
        assert scraped.value(node, "grpc_server_handled_total", grpc_code="OK", **fetch) >= 1


# ---- documents that name metrics ------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Documented:
    """A metric as a row of docs/metrics.md names it."""

    name: str
    kind: str
    labels: frozenset[str]


def documented() -> set[Documented]:
    rows = re.findall(r"^\| `([a-z_]+)(?:\{([a-z_,]+)\})?` \| (\w+) \|", (ROOT / "docs/metrics.md").read_text(), re.M)
    return {Documented(name, kind, frozenset(filter(None, labels.split(",")))) for name, labels, kind in rows}


def exposed(families: Mapping[str, list[Metric]]) -> set[Documented]:
    found = set()
    for family in (f for listed in families.values() for f in listed if not f.name.startswith("process_")):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = frozenset(label for s in family.samples for label in s.labels) - {"le"}
        found.add(Documented(name, family.type, labels))
    return found


def of_a_card() -> set[Documented]:
    """What a node without an accelerator does not tell."""
    names = ("culm_accelerator_busy_ratio", "culm_accelerator_used_bytes", "culm_accelerator_bytes")
    return {Documented(name, "gauge", frozenset({"node"})) for name in names}


def test_every_metric_is_documented_and_every_documented_one_exists(scraped: Scraped) -> None:
    assert exposed(scraped.families) | of_a_card() == documented()


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MONITORING / "grafana/dashboards/culm.json").read_text())
    return loaded


def test_the_dashboard_shows_nothing_that_does_not_exist(scraped: Scraped) -> None:
    samples = {s.name for listed in scraped.families.values() for family in listed for s in family.samples}
    samples |= {metric.name for metric in of_a_card()}
    labels = {x for listed in scraped.families.values() for f in listed for s in f.samples for x in s.labels}
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    used = {name for e in expressions for name in re.findall(r"\b(?:culm|grpc|process)_[a-z_]+", e)} - labels
    assert len(panels) > 20
    assert used - samples == set()
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    hidden = {metric.name for metric in documented()} - shown
    assert hidden == set(), "what is worth a metric is worth a place on the dashboard"


def test_the_panels_of_the_dashboard_lie_side_by_side() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for at in (panel["gridPos"] for panel in panels):
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert all(0 <= x < 24 for x, _ in cells)
        taken |= cells


def test_prometheus_finds_the_coordinator_and_all_nodes() -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    (fixed,) = jobs["coordinator"]["static_configs"]
    assert fixed["targets"] == ["coordinator:9464"]
    (found,) = jobs["stage"]["dns_sd_configs"]
    assert (found["names"], found["type"], found["port"]) == (["stage"], "A", 9464)


def test_grafana_is_given_its_data_source_and_its_dashboard() -> None:
    provisioning = MONITORING / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "culm.yml").read_text())["providers"]
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    assert source["type"] == "prometheus"
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    assert provider["options"]["path"] in (ROOT / "docs" / "metrics.md").read_text()


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", [("coordinator", "--job", DIGITS, "--listen", "127.0.0.1:0"), ("stage",)])
def test_a_metrics_port_in_use_or_a_bad_one_is_one_line(service: tuple[str, ...], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        line = the_one_line(culm(*service, "--metrics", listen, folder=tmp_path))
    assert line == f"culm {service[0]}: cannot serve metrics on {listen}: port in use; choose another with --metrics"
    assert "give HOST:PORT" in the_one_line(culm(*service, "--metrics", "here", folder=tmp_path))
