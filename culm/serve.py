"""``culm coordinator`` and ``culm stage``: the two services that make a cluster."""

import argparse
import logging
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipeline.errors import JobError

MACHINE = (
    ("--provider", "CULM_PROVIDER", "whose machine this is, such as aws, gcp or azure"),
    ("--instance-type", "CULM_INSTANCE_TYPE", "the provider's name for a machine like this one"),
    ("--region", "CULM_REGION", "where it is"),
    ("--zone", "CULM_ZONE", "where it is; a stage and its standby are kept in different zones"),
)


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    env = os.environ.get
    insecure: Any = {
        "action": "store_true",
        "default": env("CULM_INSECURE") == "1",
        "help": "listen without TLS where other machines reach it",
    }
    coordinator = commands.add_parser(
        "coordinator",
        help="decide who runs what",
        description="Serves the coordinator of one run.",
        epilog="example: culm coordinator --job examples/digits_mlp.toml --listen 127.0.0.1:7070",
    )
    coordinator.add_argument("--job", default=env("CULM_JOB"), help="the job file")
    coordinator.add_argument("--set", action="append", default=[], metavar="S.K=V", help="change a key of the job")
    coordinator.add_argument("--listen", default=env("CULM_LISTEN", "127.0.0.1:7070"), metavar="HOST:PORT")
    coordinator.add_argument("--redis", default=env("CULM_REDIS_URL", ""), metavar="URL", help="default: an own one")
    coordinator.add_argument("--run", default=env("CULM_RUN", "culm"), help="prefix of the run's keys in Redis")
    name = env("CULM_NAME", "")
    coordinator.add_argument("--name", default=name, help="one that starts again under its name takes its lease over")
    coordinator.add_argument("--nodes", type=int, default=int(env("CULM_NODES", "0")), help="how many to wait for")
    spares = int(env("CULM_SPARES") or 1)
    coordinator.add_argument("--spares", type=int, default=spares, help="nodes that stay idle, to repair with")
    settle = float(env("CULM_SETTLE_SECONDS") or 30.0)
    coordinator.add_argument("--settle-seconds", type=float, default=settle, metavar="S", help="before cutting anew")
    resume = env("CULM_RESUME", "")
    coordinator.add_argument("--resume", default=resume, metavar="URL", help="go on from the newest whole checkpoint")
    coordinator.add_argument("--allow-kill", action="store_true", default=env("CULM_ALLOW_KILL") == "1")
    coordinator.add_argument("--reflection", action="store_true", default=env("CULM_REFLECTION") == "1")
    metrics = "serve Prometheus metrics there; without HOST on loopback; default: off"
    coordinator.add_argument("--metrics", default=env("CULM_METRICS", ""), metavar="[HOST:]PORT", help=metrics)
    prices = "what machines cost; default: the example prices that Culm ships, see docs/cost.md"
    coordinator.add_argument("--prices", default=env("CULM_PRICES", ""), metavar="FILE", help=prices)
    coordinator.add_argument("--heartbeat-timeout", type=float, default=2.0, metavar="SECONDS")
    coordinator.add_argument(
        "--link-timeout",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how long two nodes that live may not reach each other before one of them has to go",
    )
    coordinator.add_argument("--insecure", **insecure)
    coordinator.set_defaults(command=run_coordinator)
    stage = commands.add_parser(
        "stage",
        help="run stages of the model",
        description="Serves one node: joins the coordinator and runs what it is given.",
        epilog="example: culm stage --coordinator 127.0.0.1:7070 --name n0",
    )
    stage.add_argument("--coordinator", default=env("CULM_COORDINATOR", "127.0.0.1:7070"), metavar="HOST:PORT")
    stage.add_argument("--listen", default=env("CULM_LISTEN", "127.0.0.1:0"), metavar="HOST:PORT")
    stage.add_argument(
        "--advertise",
        default=env("CULM_ADVERTISE", ""),
        metavar="HOST[:PORT]",
        help="where other nodes reach this one; default: where it listens, or whence it reaches the coordinator",
    )
    stage.add_argument("--name", default=env("CULM_NAME", ""), help="default: made from host name and process id")
    for flag, variable, what in MACHINE:
        stage.add_argument(flag, default=env(variable, ""), help=f"{what}; default: asked of the cloud, see --notices")
    stage.add_argument(
        "--market",
        default=env("CULM_MARKET", ""),
        choices=["", "spot", "on-demand"],
        metavar="MARKET",
        help="spot or on-demand; default: asked of the cloud",
    )
    stage.add_argument(
        "--notices",
        default=env("CULM_NOTICES") or "auto",
        metavar="SOURCES",
        help="where preemption notices come from: auto, none, or some of aws,gcp,azure,file:PATH",
    )
    stage.add_argument(
        "--drain-seconds",
        type=float,
        default=float(env("CULM_DRAIN_SECONDS") or 25.0),
        metavar="SECONDS",
        help="what SIGTERM leaves for handing over; a second one, or Ctrl-C, ends at once",
    )
    stage.add_argument("--run", default=env("CULM_RUN", ""), help="join this run alone; default: any")
    stage.add_argument("--kill-at", action="append", default=[], metavar="STEP:INSTRUCTION", help="die there")
    stage.add_argument("--reflection", action="store_true", default=env("CULM_REFLECTION") == "1")
    stage.add_argument("--metrics", default=env("CULM_METRICS", ""), metavar="[HOST:]PORT", help=metrics)
    stage.add_argument("--connect-timeout", type=float, default=30.0, metavar="SECONDS")
    stage.add_argument("--insecure", **insecure)
    stage.set_defaults(command=run_stage)


def _log() -> None:
    level = os.environ.get("CULM_LOG", "INFO").upper()
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s.%(msecs)03d %(name)s %(message)s",
                        datefmt="%H:%M:%S")  # fmt: skip


def run_coordinator(arguments: argparse.Namespace) -> int:
    from coordinator.service import main
    from coordinator.settings import CoordinatorSettings
    from culm.redis_server import EmbeddedRedis
    from pipeline.job import load_job

    _log()
    if not arguments.job:
        raise JobError("no job is named", "--job", "give the path of a JOB.toml")
    job = load_job(arguments.job, arguments.set)
    with ExitStack() as stack:
        url = arguments.redis
        if not url:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="culm-redis-"))
            url = stack.enter_context(EmbeddedRedis(Path(folder))).url
        return main(
            CoordinatorSettings(
                job=job,
                listen=arguments.listen,
                insecure=arguments.insecure,
                redis_url=url,
                run=arguments.run,
                name=arguments.name or f"{os.uname().nodename}-{os.getpid()}",
                nodes=arguments.nodes,
                resume=arguments.resume,
                spares=arguments.spares,
                settle_seconds=arguments.settle_seconds,
                allow_kill=arguments.allow_kill,
                reflection=arguments.reflection,
                metrics=arguments.metrics,
                prices=arguments.prices,
                heartbeat_timeout=arguments.heartbeat_timeout,
                link_timeout=arguments.link_timeout,
            )
        )


def run_stage(arguments: argparse.Namespace) -> int:
    from pipeline.machine import Machine
    from stage_server.notices import find_machine

    known = Machine(
        provider=arguments.provider,
        instance_type=arguments.instance_type,
        region=arguments.region,
        zone=arguments.zone,
        market=arguments.market,
    )
    _log()
    with ThreadPoolExecutor(1) as beside:  # the clouds are asked while torch is being imported
        found = beside.submit(find_machine, arguments.notices)
        from stage_server.service import main
    from stage_server.settings import StageSettings

    try:
        machine = known.filled_in(found.result())
    except ValueError as error:
        print(f"culm stage: {error}", file=sys.stderr)
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
            reflection=arguments.reflection,
            metrics=arguments.metrics,
            notices=arguments.notices,
            drain_seconds=arguments.drain_seconds,
        )
    )
