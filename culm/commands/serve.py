"""``culm coordinator`` and ``culm stage``: the two services that make a cluster."""

import argparse
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from culm.pipeline import default_ports
from culm.pipeline.errors import JobError
from culm.pipeline.log_lines import last_line
from culm.pipeline.patience import USUAL, checked, from_environment
from culm.terminal import flags, interrupts, logs

if TYPE_CHECKING:
    from culm.coordinator.state import BulksBefore
    from culm.pipeline.job import Job

MACHINE = (
    ("--provider", "CULM_PROVIDER", "whose machine this is, such as aws, gcp or azure"),
    ("--instance-type", "CULM_INSTANCE_TYPE", "the provider's name for a machine like this one"),
    ("--region", "CULM_REGION", "where it is"),
    ("--zone", "CULM_ZONE", "where it is; Culm keeps a stage and its standby in different zones"),
)


REFLECTION = "serve gRPC reflection; also CULM_REFLECTION=1"
INSECURE = "listen without TLS where other machines reach it; also CULM_INSECURE=1"


def _metrics() -> Any:
    what = "serve Prometheus metrics there, without HOST on loopback; default: CULM_METRICS, else off"
    default = flags.from_environment("CULM_METRICS")
    return {"type": flags.optional(flags.metrics_address), "default": default, "metavar": "[HOST:]PORT", "help": what}


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    env = flags.from_environment
    coordinator = commands.add_parser(
        "coordinator",
        help="serve a run's coordinator",
        description="Serves the coordinator of one run: it decides which node runs which stage and when a step counts.",
        epilog="example: culm coordinator --job examples/digits_mlp.toml --listen 127.0.0.1:7070",
    )
    coordinator.add_argument("--job", default=env("CULM_JOB"), metavar="FILE", help="the job file; default: CULM_JOB")
    coordinator.add_argument("--set", action="append", default=[], metavar="S.K=V", help="change a key of the job")
    listen = flags.listen_address
    coordinator.add_argument(
        "--listen",
        type=listen,
        default=env("CULM_LISTEN", default_ports.COORDINATOR),
        metavar="HOST:PORT",
        help=f"where it listens; default: CULM_LISTEN, else {default_ports.COORDINATOR}",
    )
    url = flags.optional(flags.redis_url)
    redis = (
        "the run's Redis; default: CULM_REDIS_URL, else the URL in the file CULM_REDIS_URL_FILE, else one of its own"
    )
    coordinator.add_argument("--redis", type=url, default=env("CULM_REDIS_URL"), metavar="URL", help=redis)
    name = flags.optional(flags.name)
    run = env("CULM_RUN", "culm")
    coordinator.add_argument(
        "--run",
        type=flags.name,
        default=run,
        help="the run's name, and its keys' prefix in Redis; default: CULM_RUN, else culm",
    )
    again = (
        "its name, under which it leads at once after a restart; default: CULM_NAME, else its container's name, or host"
        " name and process id"
    )
    coordinator.add_argument("--name", type=name, default=env("CULM_NAME"), help=again)
    many = flags.whole(0, 100_000)
    wait = (
        "nodes to wait for before training begins; default: CULM_NODES, else 0: one for each stage, or one with [graph]"
    )
    coordinator.add_argument("--nodes", type=many, default=env("CULM_NODES", "0"), metavar="N", help=wait)
    spares = "nodes that [pipeline] most_stages leaves without a stage, to repair with; default: CULM_SPARES, else 1"
    coordinator.add_argument("--spares", type=many, default=env("CULM_SPARES", "1"), metavar="K", help=spares)
    coordinator.add_argument(
        "--settle-seconds",
        type=flags.seconds,
        default=env("CULM_SETTLE_SECONDS", "30"),
        metavar="S",
        help="how long no node may come or go before the model is cut anew; default: CULM_SETTLE_SECONDS, else 30",
    )
    url = flags.optional(flags.url)
    newest = "go on from the newest whole checkpoint under URL; default: CULM_RESUME"
    coordinator.add_argument("--resume", type=url, default=env("CULM_RESUME"), metavar="URL", help=newest)
    new_run = "nobody has led this run before: begin at once at step 0, whatever checkpoints there are"
    coordinator.add_argument("--new-run", action="store_true", help=new_run)
    flags.add_allowed(coordinator, "CULM_ALLOW")
    kill = "let operators kill nodes, as the dashboard's button does; also CULM_ALLOW_KILL=1"
    flags.add_switch(coordinator, "--allow-kill", "CULM_ALLOW_KILL", kill)
    flags.add_switch(coordinator, "--reflection", "CULM_REFLECTION", REFLECTION)
    coordinator.add_argument("--metrics", **_metrics())
    prices = "a table of what machines cost (docs/cost.md); default: CULM_PRICES, else the example prices of Culm"
    coordinator.add_argument("--prices", default=env("CULM_PRICES", ""), metavar="FILE", help=prices)
    trace = 'how machines went before (docs/simulator.md): copies = "auto" begins with what it asks for'
    default = "default: CULM_TRACE, else none"
    coordinator.add_argument("--trace", default=env("CULM_TRACE", ""), metavar="FILE", help=f"{trace}; {default}")
    patience: Any = {"default": None, "metavar": "SECONDS"}
    what = "silence after which a frozen or cut off node counts as lost; every other time limit is in ratio to it"
    coordinator.add_argument("--patience", help=f"{what}; default: CULM_PATIENCE, else the job's", **patience)
    flags.add_switch(coordinator, "--insecure", "CULM_INSECURE", INSECURE)
    coordinator.set_defaults(command=run_coordinator)
    serves = "Serves one node: it joins the coordinator and runs"
    _add_node(commands, "stage", "serve one node, which runs stages", f"{serves} the stages that it is given.")
    _add_node(
        commands,
        "graph-server",
        "serve one node of a job with a [graph], which runs chunks",
        f"{serves} all layers of a graph's chunks, with the help of tensor workers. The same as culm stage.",
    )


def _add_node(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", word: str, what: str, description: str
) -> None:
    example = f"example: culm {word} --coordinator 127.0.0.1:7070 --name n0"
    stage = commands.add_parser(word, help=what, description=description, epilog=example)
    env, listen, name = flags.from_environment, flags.listen_address, flags.optional(flags.name)
    flags.add_own_coordinator(stage)
    stage.add_argument(
        "--listen",
        type=listen,
        default=env("CULM_LISTEN", "127.0.0.1:0"),
        metavar="HOST:PORT",
        help="where it listens; default: CULM_LISTEN, else any free port of 127.0.0.1",
    )
    stage.add_argument(
        "--advertise",
        type=flags.optional(flags.host),
        default=env("CULM_ADVERTISE", ""),
        metavar="HOST[:PORT]",
        help="where other nodes reach this one; default: CULM_ADVERTISE, else where it listens, or what it dials from",
    )
    stage.add_argument(
        "--name",
        type=name,
        default=env("CULM_NAME"),
        help="its name; default: CULM_NAME, else its container's name, or host name and process id",
    )
    for flag, variable, what in MACHINE:
        known = f"{what}; default: {variable}, else the cloud is asked"
        kind = name if flag == "--zone" else flags.label
        stage.add_argument(flag, type=kind, default=env(variable), help=known)
    stage.add_argument(
        "--market",
        type=flags.one_of("", "spot", "on-demand"),
        default=env("CULM_MARKET"),
        metavar="MARKET",
        help="spot or on-demand; default: CULM_MARKET, else the cloud is asked",
    )
    stage.add_argument(
        "--notices",
        type=flags.notices,
        default=env("CULM_NOTICES", "auto"),
        metavar="SOURCES",
        help="where preemption notices come from: auto, none, or some of aws,gcp,azure,file:PATH; default: "
        "CULM_NOTICES, else auto, which finds the cloud that this machine is in",
    )
    stage.add_argument(
        "--memory",
        type=flags.whole(0, 2**60),
        default=env("CULM_MEMORY", "0"),
        metavar="BYTES",
        help="memory that it may use; default: CULM_MEMORY, else 0: what its machine, its container or its "
        "accelerator has. Several nodes on one machine should share it out",
    )
    stage.add_argument(
        "--spill-above",
        type=flags.whole(0, 2**60),
        default=env("CULM_SPILL_ABOVE", "0"),
        metavar="BYTES",
        help="memory for tensors that are kept until the commit; what nobody needs at present goes to disk beyond it; "
        "default: CULM_SPILL_ABOVE, else 0: what the layers leave of --memory",
    )
    stage.add_argument(
        "--spill-folder",
        default=env("CULM_SPILL_FOLDER", "/var/tmp"),
        metavar="FOLDER",
        help="a folder on a disk, for tensors that memory has no room for; default: CULM_SPILL_FOLDER, else /var/tmp",
    )
    stage.add_argument(
        "--drain-seconds",
        type=flags.seconds,
        default=env("CULM_DRAIN_SECONDS", "25"),
        metavar="SECONDS",
        help="time to hand over after SIGTERM (a second one, or Ctrl-C, ends the node at once); default: "
        "CULM_DRAIN_SECONDS, else 25",
    )
    stage.add_argument(
        "--run", type=name, default=env("CULM_RUN"), help="join this run alone; default: CULM_RUN, else any"
    )
    stage.add_argument(
        "--kill-at", action="append", default=[], metavar="STEP:INSTRUCTION", help="die there: for tests"
    )
    flags.add_switch(stage, "--reflection", "CULM_REFLECTION", REFLECTION)
    stage.add_argument("--metrics", **_metrics())
    first = "how long to try to reach a first coordinator; default: CULM_CONNECT_TIMEOUT, else 30"
    stage.add_argument(
        "--connect-timeout",
        type=flags.seconds,
        default=env("CULM_CONNECT_TIMEOUT", "30"),
        metavar="SECONDS",
        help=first,
    )
    stage.add_argument(
        "--coordinator-timeout",
        type=flags.seconds,
        default=env("CULM_COORDINATOR_TIMEOUT", "3600"),
        metavar="SECONDS",
        help="how long to keep the state and wait for a coordinator that has gone; default: CULM_COORDINATOR_TIMEOUT, "
        "else 3600",
    )
    what = "how long a coordinator may be silent, until it has told the run's own patience"
    stage.add_argument(
        "--patience", default=None, metavar="SECONDS", help=f"{what}; default: CULM_PATIENCE, else {USUAL:g}"
    )
    flags.add_switch(stage, "--insecure", "CULM_INSECURE", INSECURE)
    stage.set_defaults(command=run_stage)


def _redis_url_in_file(path: str) -> str:
    """The URL in a file, as container secrets are: so its password is neither in the environment nor in ``ps``."""
    try:
        return Path(path).read_text(encoding="utf-8").strip() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        mend = "write the URL of Redis into that file, or name it with --redis"
        raise JobError(f"the file cannot be read ({error})", f"CULM_REDIS_URL_FILE={path}", mend) from error


def run_coordinator(arguments: argparse.Namespace) -> int:
    from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
    from culm.coordinator.edges.service import main
    from culm.local.redis_binary import RedisUnavailable
    from culm.local.redis_server import EmbeddedRedis
    from culm.pipeline.identity_parts import parse_allowed
    from culm.pipeline.job import load_job
    from culm.stage_server.own_name import own_name

    name = arguments.name or own_name()
    logs.set_up({"service": "coordinator", "run": arguments.run, "coordinator": name})
    logs.hide_secrets()
    if not arguments.job:
        raise JobError("no job file is given", "--job", "give the path of a JOB.toml")
    job = load_job(arguments.job, arguments.set)
    before = _bulks_before(arguments.trace, job)
    patience = _patience(arguments)
    interrupts.interrupt()
    with ExitStack() as stack:
        url = arguments.redis or _redis_url_in_file(os.environ.get("CULM_REDIS_URL_FILE", ""))
        if not url:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="culm-redis-"))
            try:
                url = stack.enter_context(EmbeddedRedis(Path(folder))).url
            except RedisUnavailable as error:
                raise RedisUnavailable(f"{error}; or name one that runs with --redis URL") from error
        return main(
            CoordinatorSettings(
                job=job,
                listen=arguments.listen,
                insecure=arguments.insecure,
                redis_url=url,
                run=arguments.run,
                name=name,
                nodes=arguments.nodes,
                resume=arguments.resume,
                new_run=arguments.new_run,
                allow=parse_allowed(arguments.allow),
                spares=arguments.spares,
                settle_seconds=arguments.settle_seconds,
                allow_kill=arguments.allow_kill,
                reflection=arguments.reflection,
                metrics=arguments.metrics,
                prices=arguments.prices,
                bulks_before=before,
                patience_seconds=patience,
            )
        )


def _bulks_before(path: str, job: "Job") -> "BulksBefore":
    from culm.coordinator.state import NOTHING_BEFORE
    from culm.simulator.markets.trace import bulks_before, read_trace

    if not path:
        return NOTHING_BEFORE
    if job.resilience.copies != "auto":
        asked = f"the job asks for copies = {job.resilience.copies}, whatever a trace tells"
        raise JobError(asked, f"--trace {path}", 'set resilience.copies to "auto", or leave --trace (CULM_TRACE) out')
    return bulks_before(read_trace(path))


def _patience(arguments: argparse.Namespace) -> float | None:
    return checked(arguments.patience, "--patience") if arguments.patience is not None else from_environment()


def run_stage(arguments: argparse.Namespace) -> int:
    from culm.local.ports import refuse_taken
    from culm.pipeline.machine import Machine
    from culm.pipeline.rpc.tls import check_own
    from culm.stage_server.notices import find_machine

    known = Machine(
        provider=arguments.provider,
        instance_type=arguments.instance_type,
        region=arguments.region,
        zone=arguments.zone,
        market=arguments.market,
    )
    patience = _patience(arguments)
    logs.set_up({"service": "stage", "run": arguments.run, "node": arguments.name})
    logs.hide_secrets()
    refuse_taken(arguments.listen, "--listen")
    check_own()  # what is wrong already is told before torch is imported, which takes seconds
    with ThreadPoolExecutor(1) as beside:  # the clouds are asked while torch is being imported
        found = beside.submit(find_machine, arguments.notices)
        from culm.stage_server.service import main
    from culm.stage_server.stage_settings import StageSettings

    try:
        machine = known.filled_in(found.result())
    except ValueError as error:
        last_line("stage", str(error))
        return 2
    return main(
        StageSettings(
            coordinator=arguments.coordinator,
            listen=arguments.listen,
            insecure=arguments.insecure,
            advertise=arguments.advertise,
            name=arguments.name,
            machine=machine,
            run=arguments.run,
            kill_at=tuple(arguments.kill_at),
            connect_timeout=arguments.connect_timeout,
            coordinator_timeout=arguments.coordinator_timeout,
            patience=patience or USUAL,
            reflection=arguments.reflection,
            metrics=arguments.metrics,
            notices=arguments.notices,
            drain_seconds=arguments.drain_seconds,
            memory_bytes=arguments.memory,
            spill_above=arguments.spill_above,
            spill_folder=arguments.spill_folder,
        )
    )
