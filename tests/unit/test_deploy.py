"""What stands in deploy/ is well formed, hangs together, and names only what there is."""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from culm.__main__ import HEALTH_SECONDS, MODULES, make_parser
from culm.local.authority import SERVERS
from culm.pipeline.job import load_job
from culm.stage_server.notices.gcp import NOTICE
from tests.unit.deployed import (
    DEPLOY,
    FILES,
    KUBERNETES,
    ROOT,
    compose,
    container,
    documents,
    mounts,
    name_of,
    objects,
    pods,
)

YAML = [p for p in FILES if p.suffix == ".yaml"]
CODE = [ROOT / folder for folder in ("culm", "coordinator", "stage_server", "pipeline", "ui")]
# Of services that are described here before they are built: empty this when they are there.
ARRIVING_VARIABLES: set[str] = set()
ARRIVING_COMMANDS: set[str] = set()
VARIABLE = re.compile(r"\bCULM_[A-Z][A-Z_]*[A-Z]\b")
COMMAND_LINES = (
    re.compile(rf"(?:^|[\s`])(?:\.venv/bin/)?culm ((?:{'|'.join(MODULES)})\b[^;'|#`\n]*)"),
    re.compile(r"--entrypoint culm \$\{IMAGE\} (.*)"),
)


METRICS_PORT = 9464


@pytest.mark.parametrize("path", YAML, ids=name_of)
def test_every_yaml_file_is_one(path: Path) -> None:
    assert all(isinstance(d, dict) for d in documents(path))


def test_every_variable_is_read_somewhere() -> None:
    read = {v for folder in CODE for p in folder.rglob("*.py") for v in VARIABLE.findall(p.read_text())}
    for path in FILES:
        assert set(VARIABLE.findall(path.read_text())) <= read | ARRIVING_VARIABLES, name_of(path)


def command_lines(path: Path) -> list[list[str]]:
    """What follows ``culm`` wherever the file calls it."""
    text = path.read_text().replace("\\\n", " ")
    found = [m for pattern in COMMAND_LINES for m in pattern.findall(text)]
    listed = re.findall(r"command: \[culm, ([^\]]*)\]", text)
    return [shlex.split(line) for line in found] + [[w.strip(' "') for w in line.split(",")] for line in listed]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_command_line_is_understood(path: Path) -> None:
    for words in command_lines(path):
        if words[0] in ARRIVING_COMMANDS - set(MODULES):
            continue
        arguments = make_parser().parse_args(words)
        assert callable(arguments.command)


def test_command_lines_are_found_at_all() -> None:
    found = {name_of(p): [w[0] for w in command_lines(p)] for p in FILES if command_lines(p)}
    assert found["kubernetes/stage.yaml"] == found["vm/culm-stage.service"] == ["stage"]
    assert found["skypilot/stage.yaml"] == ["up", "stage", "status"]
    assert found["skypilot/coordinator.yaml"] == ["up", "coordinator"]
    assert found["vm/culm-coordinator.service"] == ["coordinator"]
    assert {"status", "events", "doctor", "certs", "drain", "checkpoint", "up"} <= set(found["kubernetes/README.md"])


def test_the_kustomization_names_every_manifest_and_image() -> None:
    (kustomization,) = objects("Kustomization")
    assert set(kustomization["resources"]) == {p.name for p in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}
    ours = {container(name)["image"] for name in pods()} - {"redis:7-alpine"}
    assert {image["name"] for image in kustomization["images"]} == ours
    assert kustomization["replicas"][0]["name"] in pods()
    for generated in kustomization["configMapGenerator"]:
        assert all((KUBERNETES / file).is_file() for file in generated["files"])
    assert load_job(KUBERNETES / "job.toml", []).job.steps > 0


def test_what_pods_mount_is_there() -> None:
    (kustomization,) = objects("Kustomization")
    config_maps = {generated["name"] for generated in kustomization["configMapGenerator"]}
    for name, pod in pods().items():
        volumes = {v["name"]: v for v in pod["spec"].get("volumes", [])}
        for volume in volumes.values():
            assert "configMap" not in volume or volume["configMap"]["name"] in config_maps
        mounted = {m["name"]: m["mountPath"] for m in container(name).get("volumeMounts", [])}
        assert set(volumes) <= set(mounted)
        told = {e["name"]: e.get("value", "") for e in container(name).get("env", [])}
        if "CULM_TLS_DIR" in told:
            assert told["CULM_TLS_DIR"] == mounted["tls"]


def test_services_and_policies_meet_ports_that_are_listened_at() -> None:
    ports = {name: {p["name"]: p["containerPort"] for p in container(name)["ports"]} for name in pods()}
    for service in objects("Service"):
        app = service["spec"]["selector"]["app"]
        for port in service["spec"]["ports"]:
            assert ports[app][port["targetPort"]] == port["port"]
    for policy in objects("NetworkPolicy"):
        chosen = policy["spec"]["podSelector"]
        apps = [chosen["matchLabels"]["app"]] if "matchLabels" in chosen else []
        apps += [a for e in chosen.get("matchExpressions", []) for a in e["values"]]
        for rule in policy["spec"].get("ingress", []):
            for app in apps:
                assert {p["port"] for p in rule["ports"]} <= set(ports[app].values()), policy["metadata"]["name"]
    for name, pod in pods().items():
        listen = {e["name"]: e.get("value", "") for e in container(name).get("env", [])}.get("CULM_LISTEN", "")
        assert not listen or int(listen.rpartition(":")[2]) in ports[name].values()
        assert pod["metadata"]["labels"]["app"] == name


def test_a_stage_has_the_time_to_hand_over() -> None:
    drain = float(container("culm-stage")["command"][-1])
    assert drain < pods()["culm-stage"]["spec"]["terminationGracePeriodSeconds"] == 30
    unit = (DEPLOY / "vm" / "culm-stage.service").read_text()
    assert "--drain-seconds 25" in unit
    assert "TimeoutStopSec=30" in unit


def test_a_spot_vm_that_is_told_earlier_says_so_to_its_node() -> None:
    """The metadata server does not tell the option's value."""
    text = (DEPLOY / "vm" / "README.md").read_text().replace("\\\n", " ")
    (template,) = re.findall(r"gcloud compute instance-templates create culm-stage.*", text)
    (seconds,) = re.findall(r"--preemption-notice-duration (\d+)s", template)
    assert f"--metadata {NOTICE.rpartition('/')[2]}={seconds}" in template


def test_the_page_of_kubernetes_has_the_seconds_of_the_manifests() -> None:
    text = (KUBERNETES / "README.md").read_text()
    drain = container("culm-stage")["command"][-1]
    grace = pods()["culm-stage"]["spec"]["terminationGracePeriodSeconds"]
    assert f"`--drain-seconds` ({drain})" in text
    assert f"`terminationGracePeriodSeconds` ({grace})" in text
    (kubelet,) = re.findall(r"cat > spot.yaml <<END\n(.*?)END", text, re.DOTALL)
    periods = yaml.safe_load(kubelet)["kubeletConfig"]
    for_pods = periods["shutdownGracePeriodSeconds"] - periods["shutdownGracePeriodCriticalPodsSeconds"]
    assert f"{grace} s, of {for_pods} s that pods get" in text
    assert grace <= for_pods


def test_a_wheel_has_the_files_that_engines_hand_on() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {path for pattern in settings["package-data"]["culm"] for path in ROOT.glob(pattern)}
    needed = {p for engine in ("kubernetes", "skypilot") for p in (DEPLOY / engine).iterdir() if p.suffix != ".md"}
    assert needed <= found


def test_another_job_of_compose_is_a_run_of_its_own() -> None:
    """Its nodes join that run alone, and it neither finds nor deletes the checkpoints of the others."""
    services = compose()["services"]
    assert services["coordinator"]["environment"]["CULM_RUN"] == services["stage"]["environment"]["CULM_RUN"]
    assert "--set=checkpoint.url=file:///checkpoints${CULM_RUN:+/${CULM_RUN-}}" in services["coordinator"]["command"]
    assert make_parser().parse_args(services["coordinator"]["command"]).command is not None


def test_compose_on_a_gpu_gives_the_nodes_the_gpu_and_has_the_job_use_it() -> None:
    (over,) = documents(DEPLOY / "compose" / "gpu.yaml")
    base, words = compose()["services"]["coordinator"]["command"], over["services"]["coordinator"]["command"]
    assert words == [*base, "--set=job.device=cuda"], "an override replaces the whole command"
    job = load_job(ROOT / "examples" / "stdlib_gpt_grid.toml", make_parser().parse_args(words).set)
    assert job.job.device == "cuda"
    (device,) = over["services"]["stage"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_nothing_that_may_be_killed_is_pid_1() -> None:
    """The kernel spares PID 1 when it kills itself: a preempted node neither died nor worked."""
    for name, service in compose()["services"].items():
        assert service["init"] is True, name
    for name, pod in pods().items():
        assert pod["spec"]["shareProcessNamespace"] is True, name
    for path in (*(DEPLOY / "vm").glob("*.service"), *(DEPLOY / "vm").glob("*.yaml")):
        for line in re.findall(r"docker run .*", path.read_text()):
            assert "--init " in line, name_of(path)


def test_what_dies_is_started_again_and_what_ended_is_not() -> None:
    services = compose()["services"]
    assert services["stage"]["restart"] == "on-failure"
    assert all(services[s]["restart"] == "unless-stopped" for s in ("redis", "coordinator", "ui"))
    for unit in ("stage", "coordinator"):
        text = (DEPLOY / "vm" / f"culm-{unit}.service").read_text()
        assert "StartLimitIntervalSec=0\n" in text.partition("[Service]")[0]
    assert "Restart=on-failure\n" in (DEPLOY / "vm" / "culm-stage.service").read_text()
    assert "RestartPreventExitStatus=2\n" in (DEPLOY / "vm" / "culm-coordinator.service").read_text()


def test_each_service_of_compose_has_the_secrets_of_its_own_role_alone() -> None:
    services = compose()["services"]
    maker = services.pop("setup")
    made = {s for s in mounts(maker).values() if s.startswith("tls-")}
    assert maker["network_mode"] == "none"
    assert "restart" not in maker
    assert "authority" in mounts(maker).values()
    seen: list[str] = []
    for name, service in services.items():
        assert "authority" not in mounts(service).values(), name
        if name == "tensor-worker":  # it is of a node's role
            assert mounts(service)["/tls:ro"] == mounts(services["stage"])["/tls:ro"]
            continue
        own = {target: source for target, source in mounts(service).items() if source in made}
        if service["image"].startswith(("culm/", "redis:")):
            ((target, source),) = own.items()
            assert target == "/tls:ro", name
            seen.append(source)
        else:
            assert not own, name
    assert sorted(seen) == sorted(made), "a volume for each, and each has its own"


def test_compose_bounds_what_grows_and_takes_away_what_nobody_needs() -> None:
    for name, service in compose()["services"].items():
        assert {"max-size", "max-file"} <= set(service["logging"]["options"]), name
        if service["image"].startswith(("culm/", "redis:")):
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name


def test_every_health_check_of_a_container_ends_before_docker_begins_the_next_one() -> None:
    """Docker counts a check that takes longer than its timeout as failed, and lets it run on."""
    joined = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    asked = re.findall(r"^HEALTHCHECK (.*)CMD (\[.*\])$", joined, re.MULTILINE)
    assert len(asked) == 3
    for options, words in asked:
        assert f"--timeout={HEALTH_SECONDS + 1}s" in options
        program, first, *rest = json.loads(words)
        if program == "python3":
            assert rest[0].startswith(f"import signal; signal.alarm({HEALTH_SECONDS}); ")
        else:
            assert (program, first) == ("culm", "health")
    for name, service in compose()["services"].items():
        test = service.get("healthcheck", {}).get("test")
        if test and test != ["CMD", "true"]:  # which ends at once
            assert f" timeout -s KILL {HEALTH_SECONDS} " in test[-1], name
            assert service["healthcheck"]["timeout"] == f"{HEALTH_SECONDS + 1}s", name


def test_redis_is_reached_with_a_password_and_over_tls_or_from_its_own_machine_alone() -> None:
    services = compose()["services"]
    (setup,) = services["setup"]["command"]
    assert services["redis"]["networks"] == ["redis"]
    assert [n for n, s in services.items() if "redis" in s.get("networks", [])] == ["redis", "coordinator"]
    (server,) = container("culm-redis")["args"]
    for text in (setup, server):
        words = {line.strip() for line in text.split("\n")}
        assert {"port 0", "tls-port 6379"} <= words
        assert any(word.startswith("requirepass $") for word in words)
    assert "rediss://:$$password@redis:6379" in setup
    told = {e["name"]: e.get("value", "") for e in container("culm-coordinator")["env"]}
    assert told["CULM_REDIS_URL"].startswith("rediss://:$(REDIS_PASSWORD)@culm-redis:6379")
    assert {"redis", "culm-redis"} <= set(SERVERS["redis"]), "its clients compare the host with its certificate"
    for path in FILES:
        for url in re.findall(r"\brediss?://[^\s`]+", path.read_text()):
            assert ":" in url.partition("//")[2].partition("@")[0], f"{name_of(path)}: {url} has no password"
            assert url.startswith("rediss") or "@127.0.0.1:" in url, f"{name_of(path)}: {url} is not encrypted"


def test_metrics_are_served_where_ports_and_policies_name_them() -> None:
    at = f"0.0.0.0:{METRICS_PORT}"
    for name in ("coordinator", "stage"):
        assert compose()["services"][name]["environment"]["CULM_METRICS"] == at
        pod = pods()[f"culm-{name}"]
        told = {e["name"]: e.get("value", "") for e in container(f"culm-{name}")["env"]}
        ports = {p["name"]: p["containerPort"] for p in container(f"culm-{name}")["ports"]}
        assert told["CULM_METRICS"] == at
        assert ports["metrics"] == METRICS_PORT
        assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(METRICS_PORT)
        assert f"CULM_METRICS={at}\n" in (DEPLOY / "vm" / f"cloud-init-{name}.yaml").read_text()
        (task,) = documents(DEPLOY / "skypilot" / f"{name}.yaml")
        assert f"CULM_METRICS={at}" in task["run"]
    prometheus = (DEPLOY / "monitoring" / "prometheus.yml").read_text()
    assert f"coordinator:{METRICS_PORT}" in prometheus
    assert f"port: {METRICS_PORT}" in prometheus


def test_pods_run_as_the_images_user_and_write_to_no_image() -> None:
    """A user without an entry in /etc/passwd has no name, which torch.compile once asked for, and / as its home."""
    (user,) = re.findall(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name in ("culm-coordinator", "culm-stage", "culm-ui"):
        context = pods()[name]["spec"]["securityContext"]
        assert context["runAsUser"] == context["fsGroup"] == int(user), name
    for name, pod in pods().items():
        assert container(name)["securityContext"]["readOnlyRootFilesystem"] is True, name
        mounted = {m["name"]: m["mountPath"] for m in container(name)["volumeMounts"]}
        written = [mounted[volume["name"]] for volume in pod["spec"]["volumes"] if "emptyDir" in volume]
        assert "/tmp" in written, name
    told = {e["name"]: e.get("value", "") for e in container("culm-stage")["env"]}
    assert told["HOME"] == "/tmp"


def test_probes_work_with_tls_and_cost_less_than_a_hundredth_of_a_core() -> None:
    """``culm health`` takes 0.2 s of a core, and Kubernetes' gRPC probe knows no certificates."""
    kinds = {"culm-coordinator": ("tcpSocket", "httpGet"), "culm-stage": ("tcpSocket", "httpGet")}
    kinds["culm-ui"] = ("httpGet", "httpGet")
    for name, (ready, alive) in kinds.items():
        own = container(name)
        ports = {p["name"] for p in own["ports"]}
        probes = {kind: own[kind] for kind in ("readinessProbe", "livenessProbe", "startupProbe") if kind in own}
        assert ready in probes["readinessProbe"], name
        assert alive in probes["livenessProbe"], name
        for kind, probe in probes.items():
            asked = probe.get("httpGet") or probe["tcpSocket"]
            assert asked["port"] in ports, f"{name}: {kind}"
            if "httpGet" in probe:
                assert asked["path"] == ("/_stcore/health" if name == "culm-ui" else "/metrics"), f"{name}: {kind}"
        patience = probes["livenessProbe"]["periodSeconds"] * probes["livenessProbe"]["failureThreshold"]
        assert patience >= 180, "whoever compiles a model, or reads a large one, is not started again for it"
        # Who asks for ``latest`` would pull it each time, and find no image that lies on the machine alone.
        assert own["imagePullPolicy"] == "IfNotPresent", name


def test_a_machine_that_vanished_is_replaced_within_a_minute() -> None:
    for name in ("culm-coordinator", "culm-stage"):
        left = {
            x["key"]: x["tolerationSeconds"] for x in pods()[name]["spec"]["tolerations"] if "tolerationSeconds" in x
        }
        assert left == {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}, name


def scripts() -> dict[str, str]:
    """Every shell script that a file holds."""
    found: dict[str, str] = {}
    for path in sorted((DEPLOY / "skypilot").glob("*.yaml")):
        (task,) = documents(path)
        found |= {f"{name_of(path)}, {part}": task[part] for part in ("setup", "run")}
    for name in ("stage", "coordinator"):
        (config,) = documents(DEPLOY / "vm" / f"cloud-init-{name}.yaml")
        found |= {f["path"]: f["content"] for f in config["write_files"] if f["content"].startswith("#!")}
    (setup,) = compose()["services"]["setup"]["command"]
    found["docker-compose.yml, setup"] = setup.replace("$$", "$")
    for path in FILES:
        for i, script in enumerate(re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL)):
            found[f"{name_of(path)}, script {i}"] = script
    return found


@pytest.mark.parametrize("name", scripts())
def test_every_script_is_shell(name: str) -> None:
    subprocess.run(["sh", "-n"], input=scripts()[name], text=True, check=True)
