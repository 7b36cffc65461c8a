"""SkyPilot: the coordinator is a cluster on a machine that stays, the stage servers are managed jobs on spot machines.

    culm up ──sky launch──────► coordinator ◄──its private address── stage servers, a managed job each
            ──sky jobs launch─► SkyPilot's jobs controller, which finds another machine for a job that lost its own

The task files are those of ``deploy/skypilot``, and copies of them stand in the cluster's folder. What they are told of
this run goes by flags: its settings by ``--env``, its certificates and the password of its Redis by ``--secret NAME``.
SkyPilot takes a secret's value from the environment: every user of this machine may read a command line.

The task files open no port. Commands with ``--cluster`` reach the coordinator through ``ssh -N -L``, which ends with
them. SkyPilot has put the machine's name and key into the configuration of ssh.
"""

import base64
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import culm
from culm.engines.command import last_words, refusals_of, run
from culm.engines.engine import Tell, Wish, refuse_new_run
from culm.engines.local import lines_of
from culm.engines.services import await_coordinator, make_kit, read_settings
from culm.local import clusters
from culm.local.clusters import Record
from culm.local.ports import free_port, is_free
from culm.local.tied import tied
from culm.pipeline import private
from culm.pipeline.default_ports import COORDINATOR_PORT
from culm.pipeline.errors import JobError

WHERE = "--on skypilot"
COORDINATOR = "coordinator"
SECRETS = {"CA_CRT": "ca.crt", "TLS_CRT": "tls.crt", "TLS_KEY": "tls.key"}  # of a task file, and the PEM file in each
PASSWORD = "REDIS_PASSWORD"
STORAGES = {"gs": "gcsfs", "s3": "s3fs", "az": "adlfs", "abfs": "adlfs"}  # what reaches checkpoints, by their URL
LAUNCHES_AT_ONCE = 4  # after the first one, which starts the jobs controller
ASK_SECONDS = 120.0  # for what SkyPilot knows already
DOWN_SECONDS = 1200.0
TUNNEL_SECONDS = 20.0
POLL_SECONDS = 0.05
NO_JOBS = "No in-progress managed jobs"  # what sky jobs queue fails with before the first one
WHOLE = ("--no-follow", "--tail", "0")  # of a log, up to now
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
# Where the zones stand in the task file of a stage server.
PLACES = re.compile(r"^  any_of:.*\n((?:    - infra: .*\n)+)", re.MULTILINE)
# What the coordinator's machine is asked: whether somebody listens there, and where others of its network reach it.
LISTENS = f"exec 3<>/dev/tcp/127.0.0.1/{COORDINATOR_PORT} && hostname --all-ip-addresses"
SSH = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15")
# ``sky jobs queue`` fails where there has been no managed job yet.
_run = partial(
    run, where=WHERE, mend="see whether sky status answers", who="SkyPilot", seconds=ASK_SECONDS, allowed=NO_JOBS
)


@dataclass(frozen=True)
class Launch:
    """A command of SkyPilot, and what its environment has beside this process's."""

    words: list[str]
    secrets: Mapping[str, str]


class SkyPilot:
    more = "sky jobs launch, with the words that culm up --dry-run prints"
    options: Mapping[str, str] = {
        "infra": "a region, such as aws/us-east-1, or zones of one, with commas between; default: as in the task files",
        "gpus": "of a stage server, such as L4:1 or none; default: by the task file if the job says cuda, else none",
        "launch": "more words for the sky jobs launch of the stage servers, such as '--cpus 8+ --memory 32+'",
        "coordinator_launch": "the same for the sky launch of the coordinator",
        "workdir": "the folder with your code, which SkyPilot copies to each machine; default: the current one",
        "pip": "what pip installs there, Culm for one; default: the workdir, which is Culm's own repository then",
        "task": "another task file for the stage servers; default: deploy/skypilot/stage.yaml",
        "coordinator_task": "another task file for the coordinator; default: deploy/skypilot/coordinator.yaml",
    }

    def up(self, folder: Path, wish: Wish, tell: Tell) -> Record:
        _prepare(folder, wish)
        handles = _names(folder, wish)
        cluster = handles[COORDINATOR]
        certificates = str(folder / "certs" / "operator")
        record = Record(name=wish.name, job=wish.job, engine="skypilot", handles=handles, certificates=certificates)
        clusters.write(folder, record)
        tell(f"SkyPilot rents the coordinator's machine and sets it up; see {folder / 'sky-coordinator.log'}")
        _launch(_coordinator(folder, wish), folder / "sky-coordinator.log")
        found = await_coordinator(lambda: _listening(cluster), lambda: _coordinator_state(cluster), tell)
        record = replace(record, address=found)
        clusters.write(folder, record)
        nodes = [name for name in handles if name != COORDINATOR]
        tell(f"SkyPilot is given {len(nodes)} managed jobs; see {folder / 'sky-n0.log'} and its like")
        jobs = [partial(_launch, _stage(folder, wish, found, node), folder / f"sky-{node}.log") for node in nodes]
        jobs[0]()
        pool = ThreadPoolExecutor(LAUNCHES_AT_ONCE)
        try:
            for launched in [pool.submit(job) for job in jobs[1:]]:
                launched.result()
        finally:
            pool.shutdown(cancel_futures=True)
        return record

    def plan(self, folder: Path, wish: Wish) -> str:
        _prepare(folder, wish)
        address = f"ADDRESS:{COORDINATOR_PORT}"  # private, of the coordinator's machine
        launches = [_coordinator(folder, wish)]
        launches += [_stage(folder, wish, address, name) for name in _names(folder, wish) if name != COORDINATOR]
        files = [f"# {file}\n{file.read_text()}" for file in sorted(folder.glob("*.yaml"))]
        return "\n".join([*files, *(shlex.join(each.words) for each in launches), ""])

    def refusals(self, folder: Path, wish: Wish) -> list[JobError]:
        return refusals_of([partial(refuse_new_run, wish), lambda: _run(["sky", "check"])])

    def reach(self, folder: Path, record: Record) -> str:
        port = free_port()
        forward = ["-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{port}:127.0.0.1:{COORDINATOR_PORT}"]
        words = ["ssh", "-N", *SSH, *forward, record.handles[COORDINATOR]]
        log = folder / "ssh.log"
        # Into a file: a pipe would end where ``culm ui`` becomes another program, and ssh with it.
        with open(log, "wb", opener=private.opener) as output:
            tunnel = subprocess.Popen(tied(words), stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        deadline = time.monotonic() + TUNNEL_SECONDS
        while time.monotonic() < deadline and tunnel.poll() is None:
            if not is_free(port):
                return f"127.0.0.1:{port}"
            time.sleep(POLL_SECONDS)
        tunnel.kill()
        mend = f"sky status {record.handles[COORDINATOR]} says how its machine is, and tells ssh where it is"
        raise JobError(f"ssh does not reach the coordinator's machine: {last_words(lines_of(log))}", WHERE, mend)

    def parts(self, folder: Path, record: Record) -> Mapping[str, str]:
        jobs = {part: ", ".join(state for _, state in each) for part, each in _jobs(record).items()}
        return {**_machine(record), **jobs}

    def logs(self, folder: Path, record: Record) -> Mapping[str, Callable[[], Iterator[str]]]:
        asked = {
            part: ["sky", "logs", name] if part == COORDINATOR else ["sky", "jobs", "logs", "--name", name]
            for part, name in record.handles.items()
        }
        files = {file.stem: partial(lines_of, file) for file in sorted(folder.glob("sky-*.log"))}
        return {**files, **{part: partial(_lines, [*words, *WHOLE]) for part, words in asked.items()}}

    def down(self, folder: Path, record: Record) -> list[str]:
        if not record.handles:
            return []
        machine, jobs = _machine(record), _jobs(record)
        if jobs:
            _run(["sky", "jobs", "cancel", "--yes", *(str(number) for each in jobs.values() for number, _ in each)])
        if machine:
            _run(["sky", "down", "--yes", record.handles[COORDINATOR]], seconds=DOWN_SECONDS)
        clusters.write(folder, replace(record, handles={}))
        return [*machine, *jobs]


def _prepare(folder: Path, wish: Wish) -> None:
    """Certificates, the password, and the task files, of which there is one for each zone that a node prefers."""
    if shutil.which("sky") is None:
        raise JobError("there is no sky here", WHERE, "install SkyPilot, and see that sky check finds your cloud")
    make_kit(folder, wish)
    private.write_text(folder / "redis-password", secrets.token_urlsafe(32))
    private.write_text(folder / "coordinator.yaml", _task(wish, "coordinator_task", "coordinator.yaml"))
    stage = _task(wish, "task", "stage.yaml")
    places = _places(wish, stage)
    for first in range(max(1, len(places))):
        text = "".join(f"    - infra: {place}\n" for place in (*places[first:], *places[:first]))
        ordered = PLACES.sub(f"  ordered: # the first of them that has a machine\n{text}", stage) if places else stage
        private.write_text(folder / f"stage-{first}.yaml", ordered)


def _task(wish: Wish, option: str, usual: str) -> str:
    file = wish.options.get(option) or Path(culm.__file__).resolve().parent / "deploy" / "skypilot" / usual
    try:
        return Path(file).read_text()
    except OSError as error:
        raise JobError(f"the task file cannot be read ({error})", f"--with {option}", "name another one") from error


def _places(wish: Wish, stage: str) -> list[str]:
    """The zones in which a stage server may run: what was asked for, or what the task file lists."""
    found = PLACES.search(stage)
    if asked := wish.options.get("infra", ""):
        if not found:
            mend = "let it list them under any_of, as deploy/skypilot/stage.yaml does"
            raise JobError("the task file has no place for zones", "--with infra", mend)
        return [place.strip() for place in asked.split(",")]
    return re.findall(r"- infra: (\S+)", found[1]) if found else []


def _names(folder: Path, wish: Wish) -> dict[str, str]:
    """What SkyPilot calls the parts. They begin with the run's name, which no other run has."""
    run = read_settings(folder).run
    nodes = {f"n{number}": f"culm-{run}-n{number}" for number in range(wish.nodes)}
    return {COORDINATOR: f"culm-{run}-coordinator", **nodes}


def _coordinator(folder: Path, wish: Wish) -> Launch:
    settings = read_settings(folder)
    environment = {
        "CULM_JOB": str(folder / "job.toml"),
        "CULM_NODES": str(wish.nodes),
        "CULM_RESUME": wish.resume,
        "CULM_ALLOW": wish.allow,
        "CULM_RUN": settings.run,
    }
    words = ["sky", "launch", "--yes", "--cluster", _names(folder, wish)[COORDINATOR], "--detach-run"]
    words += ["--workdir", str(_workdir(wish))]
    if region := "/".join(wish.options.get("infra", "").split(",")[0].strip().split("/")[:2]):
        words += ["--infra", region]
    words += shlex.split(wish.options.get("coordinator_launch", ""))
    hidden = {**_certificates(folder, COORDINATOR), PASSWORD: (folder / "redis-password").read_text()}
    return _told(words, folder / "coordinator.yaml", {**environment, **_shared(folder, wish)}, hidden)


def _stage(folder: Path, wish: Wish, address: str, node: str) -> Launch:
    workdir = _workdir(wish)
    modules = os.path.relpath(wish.job_folder, workdir)
    environment = {
        "CULM_COORDINATOR": address,
        "CULM_NAME": node,
        "CULM_RUN": read_settings(folder).run,
        "MODULES": "." if modules.startswith("..") else modules,
    }
    words = ["sky", "jobs", "launch", "--yes", "--name", _names(folder, wish)[node], "--detach-run"]
    words += ["--workdir", str(workdir)]
    device = tomllib.loads((folder / "job.toml").read_text()).get("job", {}).get("device", "cpu")
    if gpus := wish.options.get("gpus") or ("" if device == "cuda" else "none"):
        words += ["--gpus", gpus]
    words += shlex.split(wish.options.get("launch", ""))
    files = sorted(folder.glob("stage-*.yaml"))
    task = folder / f"stage-{int(node[1:]) % len(files)}.yaml"
    return _told(words, task, {**environment, **_shared(folder, wish)}, _certificates(folder, "stage"))


def _told(words: list[str], task: Path, environment: Mapping[str, str], hidden: Mapping[str, str]) -> Launch:
    settings = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
    named = [word for name in hidden for word in ("--secret", name)]
    return Launch([*words, *settings, *named, str(task)], hidden)


def _shared(folder: Path, wish: Wish) -> dict[str, str]:
    """What both kinds of machine install."""
    url = tomllib.loads((folder / "job.toml").read_text()).get("checkpoint", {}).get("url", "")
    packages = wish.options.get("pip", "")
    if not packages and not (_workdir(wish) / "stage_server" / "node.py").exists():
        mend = "say --with pip=PACKAGE: its name, a URL, or ./FILE.whl for a wheel in that folder"
        raise JobError("nothing says how Culm gets to the machines", f"--with workdir={_workdir(wish)}", mend)
    return {"PACKAGES": packages, "STORAGE": STORAGES.get(str(url).partition("://")[0], "")}


def _workdir(wish: Wish) -> Path:
    return Path(wish.options.get("workdir") or ".").resolve()


def _certificates(folder: Path, role: str) -> dict[str, str]:
    certificates = folder / "certs" / role
    return {name: base64.b64encode((certificates / file).read_bytes()).decode() for name, file in SECRETS.items()}


def _launch(launch: Launch, log: Path) -> None:
    """Raises JobError with the last words of SkyPilot, all of which the log has."""
    environment = {**os.environ, **launch.secrets}
    with open(log, "wb", opener=private.opener) as output:
        done = subprocess.run(
            launch.words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    if done.returncode:
        raise JobError(f"SkyPilot refuses: {last_words(lines_of(log))}", str(log), "mend what it says there")


def _listening(cluster: str) -> str:
    """The coordinator's address in its network, once it listens; else empty."""
    words = ["ssh", *SSH, cluster, f"bash -c {shlex.quote(LISTENS)}"]
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_SECONDS)
        if done.returncode == 0 and done.stdout.split():
            return f"{done.stdout.split()[0]}:{COORDINATOR_PORT}"
    return ""


def _coordinator_state(cluster: str) -> str:
    """What the wait for the coordinator is for, in words. Raises JobError once its job has ended."""
    jobs = _asked(["sky", "queue", cluster, "--output", "json"], {}).get(cluster, [])
    state = str(jobs[0].get("status")) if jobs else "not submitted"
    if state.startswith(ENDED):
        said = last_words(_lines(["sky", "logs", cluster, *WHOLE]))
        raise JobError(f"the coordinator's job is {state}: {said}", WHERE, f"see sky logs {cluster}")
    return f"waiting for the coordinator: its job is {state}"


def _machine(record: Record) -> dict[str, str]:
    """The state of the coordinator's machine, if SkyPilot still has it."""
    name = record.handles.get(COORDINATOR)
    known = _asked(["sky", "status", name, "--output", "json"], []) if name else []
    return {COORDINATOR: str(known[0].get("status"))} if known else {}


def _jobs(record: Record) -> dict[str, list[tuple[int, str]]]:
    """By node, the numbers and the states of its managed jobs that have not ended.

    There may be several of one name, and ended ones beside them: somebody has launched it again, as ``more`` says.
    """
    nodes = {name: part for part, name in record.handles.items() if part != COORDINATOR}
    known = _asked(["sky", "jobs", "queue", "--all", "--output", "json"], []) if nodes else []
    found: dict[str, list[tuple[int, str]]] = {node: [] for node in nodes.values()}
    for job in known:
        if job.get("job_name") in nodes and not str(job["status"]).startswith(ENDED):
            found[nodes[job["job_name"]]].append((int(job["job_id"]), str(job["status"])))
    return {node: jobs for node, jobs in found.items() if jobs}


def _asked(words: list[str], usual: Any) -> Any:
    """The JSON that it prints, after lines for people; ``usual`` if there is none."""
    lines = _run(words).splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith(("[", "{"))), None)
    return usual if begin is None else json.loads("\n".join(lines[begin:]))


def _lines(words: list[str]) -> Iterator[str]:
    """What it prints, whatever its exit code, which is that of the job."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_SECONDS)
        yield from done.stdout.splitlines()
