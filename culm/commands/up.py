"""``culm up``: a job on a cluster that stays: processes of this machine, or a cluster that exists."""

import argparse
import json
import sys
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory

from culm.commands.run import (
    add_cluster_arguments,
    add_job_arguments,
    check_files,
    node_count,
    read_job,
    try_out,
)
from culm.engines.engine import ENGINES, Engine, Wish, find, options_of
from culm.local import clusters
from culm.local.clusters import LOCAL, Record
from culm.local.ports import is_free, refuse_open, refuse_taken
from culm.pipeline import default_ports, private
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.terminal import flags, interrupts
from culm.terminal.asides import aside
from culm.terminal.unsaved import KEPT_NOWHERE, unsaved


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "up",
        help="start a cluster that stays",
        description="Starts a coordinator, a Redis and the nodes, which stay: on this machine, with the dashboard, or "
        "on a cluster that exists (--on). culm down ends them. docs/clusters.md tells how each engine is used.",
        epilog="examples:\n"
        "  culm up examples/digits_mlp.toml --spares 1\n"
        "  culm up examples/stdlib_gpt.toml --name gpt --no-ui\n"
        "  culm up job.toml --on slurm --nodes 8 --with partition=spot --with coordinator_partition=main\n"
        "  culm up job.toml --on ray --nodes 8 --with address=auto",
    )
    add_job_arguments(parser)
    name = flags.optional(flags.name)
    parser.add_argument("--name", type=name, default="", help="the cluster's name; default: the job's")
    engines = flags.one_of(*ENGINES)
    on = f"what it runs on: {', '.join(ENGINES)}; default: {LOCAL}, processes of this machine"
    parser.add_argument("--on", type=engines, default=LOCAL, metavar="ENGINE", help=on)
    option = "an option of the engine; --with help lists them"
    parser.add_argument("--with", dest="options", action="append", default=[], metavar="KEY=VALUE", help=option)
    dry = "print what the cluster would be told, and why it would refuse; start nothing, and write nothing"
    parser.add_argument("--dry-run", action="store_true", help=dry)
    add_cluster_arguments(parser)
    parser.add_argument("--no-ui", action="store_true", help="do not start the dashboard")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=up)


def up(arguments: argparse.Namespace) -> int:
    from culm.local.cluster import job_folder_of
    from culm.pipeline.job import job_to_toml

    engine = find(arguments.on)
    if arguments.options == ["help"]:
        print("\n".join(f"{key:<22} {meaning}" for key, meaning in engine.options.items()) or "it has no options")
        return 0
    options = options_of(arguments.options, engine, arguments.on)
    job = read_job(arguments.job, arguments.set)
    nodes = node_count(job, arguments.nodes, arguments.spares)
    name = arguments.name or job.job.name
    clusters.refuse_running(name)
    if arguments.on == LOCAL:
        refuse_open(arguments.coordinator_address, "--coordinator-address")
        refuse_taken(arguments.coordinator_address, "--coordinator-address")
    wish = Wish(
        name=name,
        job=arguments.job,
        job_folder=job_folder_of(arguments.job),
        nodes=nodes,
        address=arguments.coordinator_address,
        resume=arguments.resume,
        allow=arguments.allow,
        new_run=arguments.new_run,
        ui=not arguments.no_ui,
        options=options,
    )
    with TemporaryDirectory() as scratch:  # for the engine's drafts
        draft = Path(scratch).resolve()
        private.write_text(draft / "job.toml", job_to_toml(job))
        if arguments.dry_run:
            print(engine.plan(draft, wish).replace(str(draft), str(clusters.folder_of(name))), end="", flush=True)
        refused = engine.refusals(draft, wish)
    if arguments.dry_run:
        _say_beforehand(arguments, job, name)
        for error in refused:
            print(f"culm up: {error}", file=sys.stderr)
        return 2 if refused else 0
    for error in refused:
        raise error
    resumed = check_files(job, arguments.resume, arguments.allow, arguments.new_run)
    _say_beforehand(arguments, job, name)
    try_out(job, here=arguments.on == LOCAL, then=resumed.job, logs_here=False)
    folder = clusters.make_folder(name)
    private.write_text(folder / "job.toml", job_to_toml(job))
    interrupts.end_on_sigterm()
    try:
        record = engine.up(folder, wish, aside)
    except KeyboardInterrupt:
        if _is_taken_back(engine, folder, name):
            print("culm up: interrupted; what was started is ended", file=sys.stderr)
        return 130
    except BaseException:
        _is_taken_back(engine, folder, name)
        raise
    if arguments.json:
        print(json.dumps({**_shown(record), "folder": str(folder)}))
        return 0
    print(in_words(record, not arguments.no_ui, is_saved=job.checkpoint is not None))
    if record.ui and sys.stdout.isatty():
        webbrowser.open(record.ui)
    return 0


def _say_beforehand(arguments: argparse.Namespace, job: Job, name: str) -> None:
    """What hinders nothing, and is better known now than at the end."""
    port = default_ports.COORDINATOR_PORT
    if arguments.on == LOCAL and not arguments.coordinator_address and not is_free(port):
        owner = clusters.listening_at(default_ports.COORDINATOR)
        by = f"the cluster {owner}" if owner else "another process"
        mend = f"say --cluster {name} with culm status and its like, or choose a port with --coordinator-address"
        what = f"port {port} is taken by {by}, so the coordinator will listen at another one; {mend}"
        print(what, file=sys.stderr)
    if (said := unsaved(job, here=arguments.on == LOCAL)) and not arguments.json:
        print(said, file=sys.stderr)


def _is_taken_back(engine: Engine, folder: Path, name: str) -> bool:
    """Ends what was started, which stays on record where that does not succeed."""
    try:
        engine.down(folder, clusters.read(folder) or Record(name=name))
    except (JobError, KeyboardInterrupt) as error:
        why = f": {error}" if isinstance(error, JobError) else ""
        mend = f"culm clusters lists it, and culm down {name} ends it"
        print(f"culm up: not all of {name} is ended{why}; {mend}", file=sys.stderr)
        return False
    return True


def _shown(record: Record) -> dict[str, object]:
    shown = {"name": record.name, "engine": record.engine, "coordinator": record.address, "ui": record.ui or None}
    if record.engine == LOCAL:
        return {**shown, "pids": {name: process.pid for name, process in record.processes.items()}}
    return {**shown, "handles": dict(record.handles)}


def in_words(record: Record, ui_wanted: bool, is_saved: bool) -> str:
    """What the user needs to know of a cluster that is up."""
    name, ask = record.name, f"--cluster {record.name}"
    folder = clusters.folder_of(name)
    if record.ui:
        ui = record.ui
    elif "ui" in record.processes:
        ui = f"it does not answer yet; see {folder / 'ui.log'}"
    elif ui_wanted and record.engine == LOCAL:
        ui = f"it did not start: pip install 'culm[ui]', then culm ui {ask}"
    else:
        ui = f"culm ui {ask} starts it"
    if record.engine == LOCAL:
        parts = ", ".join(f"{part} {process.pid}" for part, process in record.processes.items())
        lines = [f"processes:   {parts}", f"logs:        culm logs {name}, or {folder}"]
    else:
        parts = ", ".join(f"{part} {handle}" for part, handle in record.handles.items())
        lines = [f"on {record.engine + ':':<9} {parts}", f"logs:        culm logs {name}"]
    return "\n".join(
        [
            f"{name} is up",
            f"coordinator: {record.address}",
            f"ui:          {ui}",
            *lines,
            *([] if is_saved else [f"saved:       {KEPT_NOWHERE}"]),
            f"watch it:    culm top {ask}",
            f"             culm events {ask} --follow",
            f"end it:      culm down {name}",
        ]
    )
