"""``culm up``: a local cluster that stays when the terminal is closed."""

import argparse
import json
import subprocess
import sys
import time
import webbrowser
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from culm.commands.run import (
    add_cluster_arguments,
    add_job_arguments,
    end_on_sigterm,
    node_count,
    read_job,
    refuse_to_write_over,
    try_out,
)
from culm.local import clusters
from culm.local.clusters import KEEPER, Process, Record
from culm.pipeline import private
from culm.pipeline.errors import JobError
from culm.terminal import flags

START_SECONDS = 60.0
UI_SECONDS = 20.0
POLL_SECONDS = 0.05


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "up",
        help="start a local cluster that stays",
        description="Starts a coordinator, a Redis, the nodes and the dashboard, which stay. culm down ends them.",
        epilog="examples:\n"
        "  culm up examples/digits_mlp.toml --spares 1\n"
        "  culm up examples/stdlib_gpt.toml --name gpt --no-ui",
    )
    add_job_arguments(parser)
    name = flags.optional(flags.name)
    parser.add_argument("--name", type=name, default="", help="the cluster's name; default: the job's")
    add_cluster_arguments(parser)
    parser.add_argument("--no-ui", action="store_true", help="do not start the dashboard")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=up)


def up(arguments: argparse.Namespace) -> int:
    from culm.local.cluster import job_folder_of
    from culm.pipeline.job import job_to_toml

    job = read_job(arguments.job, arguments.set)
    nodes = node_count(job, arguments.nodes, arguments.spares)
    try_out(job)
    refuse_to_write_over(job, arguments.resume, arguments.new_run)
    name = arguments.name or job.job.name
    folder = clusters.make_folder(name)
    private.write_text(folder / "job.toml", job_to_toml(job))
    wish = {
        "job_folder": str(job_folder_of(arguments.job)),
        "nodes": nodes,
        "address": arguments.coordinator_address,
        "resume": arguments.resume,
        "allow": arguments.allow,
        "ui": not arguments.no_ui,
    }
    private.write_text(folder / "wish.json", json.dumps(wish))
    end_on_sigterm()
    try:
        record = _await_ui(folder, _await_address(folder, _start_keeper(folder, Record(name, arguments.job))))
    except KeyboardInterrupt:
        clusters.end(folder)
        print("culm up: interrupted; every process is ended", file=sys.stderr)
        return 130
    if arguments.json:
        pids = {n: p.pid for n, p in record.processes.items()}
        shown = {"name": name, "coordinator": record.address, "ui": record.ui or None, "folder": str(folder)}
        print(json.dumps({**shown, "pids": pids}))
        return 0
    print(in_words(record, folder, not arguments.no_ui))
    if record.ui and sys.stdout.isatty():
        webbrowser.open(record.ui)
    return 0


def _start_keeper(folder: Path, record: Record) -> "subprocess.Popen[bytes]":
    """Starts the process that starts all others, and puts it on record before it does anything."""
    with open(folder / "keeper.log", "ab", opener=private.opener) as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "culm.commands.keeper", str(folder.resolve())],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # it outlives this process and its terminal
        )
    found = Process.of(keeper.pid)
    clusters.write(folder, replace(record, processes={KEEPER: found} if found is not None else {}))
    assert keeper.stdin is not None
    with suppress(BrokenPipeError), keeper.stdin as told:  # if it has ended already, its log says why
        told.write(b"go\n")
    return keeper


def _await_address(folder: Path, keeper: "subprocess.Popen[bytes]") -> Record:
    """The record once the coordinator listens. Raises JobError with the keeper's last words."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        record = clusters.read(folder)
        if record is not None and record.address:
            return record
        try:
            keeper.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        said = (folder / "keeper.log").read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise JobError(
            f"the cluster did not come up: {said[-1].removeprefix('culm up: ')}", str(folder), "see the logs there"
        )
    clusters.end(folder)
    raise JobError(f"the coordinator does not listen after {START_SECONDS:g} s", str(folder), "see the logs there")


def _await_ui(folder: Path, record: Record) -> Record:
    """The record once the UI answers, if one was started; as it is when it ends or takes too long."""
    deadline = time.monotonic() + UI_SECONDS
    while "ui" in record.processes and not record.ui and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        record = clusters.read(folder) or record
    return record


def in_words(record: Record, folder: Path, ui_wanted: bool) -> str:
    """What the user needs to know of a cluster that is up."""
    pids = ", ".join(f"{name} {process.pid}" for name, process in record.processes.items())
    if record.ui:
        ui = record.ui
    elif "ui" in record.processes:
        ui = f"it does not answer yet; see {folder / 'ui.log'}"
    elif ui_wanted:
        ui = f"it did not start: pip install 'culm[ui]', then culm ui --coordinator {record.address}"
    else:
        ui = f"culm ui --coordinator {record.address} starts it"
    return (
        f"{record.name} is up\n"
        f"coordinator: {record.address}\n"
        f"ui:          {ui}\n"
        f"processes:   {pids}\n"
        f"logs:        {folder}\n"
        f"watch it:    culm status --coordinator {record.address}\n"
        f"             culm events --coordinator {record.address} --follow\n"
        f"end it:      culm down {record.name}"
    )
