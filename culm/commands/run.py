"""``culm run``: a job on a local cluster of real processes."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from culm.coordinator.edges.tracking import refuse_missing
from culm.local.redis_binary import find_redis_server
from culm.local.run_folder import refuse_read_only
from culm.pipeline import default_ports
from culm.pipeline.counting import of_chunks
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, load_job, parse_job, with_values
from culm.pipeline.text import shown_url
from culm.protos import coordinator_pb2 as pb
from culm.terminal import flags, interrupts
from culm.terminal.outcome import Outcome
from culm.terminal.unsaved import unsaved

KILL = (
    "kill -9 that node there, in a step counted from 0. 2B3 is stage 2's backward of microbatch 3 (F: its forward), "
    "p1/2B3 that of pipeline 1. forward, backward, send, receive, sum, ship, ready or commit is the node's first of "
    "that kind in the step; default: backward"
)


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "run",
        help="train a job on a local cluster",
        description="Trains a job with real processes on this machine: a coordinator, a Redis and the nodes.",
        epilog="example: culm run examples/digits_mlp.toml --spares 1 --kill n1@20:1B1 --out weights.safetensors",
    )
    add_job_arguments(parser)
    parser.add_argument("--kill", action="append", default=[], metavar="NODE@STEP[:INSTRUCTION]", help=KILL)
    parser.add_argument("--out", type=flags.weights_file, metavar="FILE", help="write the final weights as safetensors")
    add_cluster_arguments(parser)
    parser.add_argument("--no-respawn", action="store_true", help="do not start killed nodes again")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.set_defaults(command=run)


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of every command that runs a job."""
    parser.add_argument("job", metavar="JOB.toml", help="the job file")
    nodes = "nodes to start; default: one for each stage, or graph.servers of a job on a graph"
    parser.add_argument("--nodes", type=flags.nodes, metavar="N", help=nodes)
    parser.add_argument(
        "--spares", type=flags.nodes, default=0, metavar="K", help="nodes to start beside --nodes; default: 0"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a key of the job"
    )


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of every command that starts one local cluster."""
    listen = flags.optional(flags.listen_address)
    parser.add_argument(
        "--coordinator-address",
        type=listen,
        default="",
        metavar="HOST:PORT",
        help=f"where the coordinator listens; default: {default_ports.COORDINATOR}, or any free port if that is taken",
    )
    url = flags.optional(flags.url)
    parser.add_argument(
        "--resume", type=url, default="", metavar="URL", help="go on from the newest whole checkpoint under URL"
    )
    flags.add_allowed(parser)
    anew = "begin anew also where whole checkpoints lie at the job's own URL, and write over them"
    parser.add_argument("--new-run", action="store_true", help=anew)


def read_job(path: str, overrides: Sequence[str]) -> Job:
    """Loads a job, whose folder is importable from then on. Raises JobError."""
    sys.path.insert(1, str(Path(path).resolve().parent))  # after the current folder, before what is installed
    return load_job(path, overrides)


def try_out(job: Job, here: bool = True, then: Job | None = None, logs_here: bool = True) -> None:
    """Builds the model and runs it once, so that a mistake in it shows before anything starts. Raises JobError.

    ``here``: the cluster will be one of this machine, which needs a Redis server. Raises RedisUnavailable. ``then``:
    the job that wrote the checkpoint from which this one goes on. ``logs_here``: they will lie in the current folder.
    """
    refuse_missing(job)
    if here:
        find_redis_server()  # before the trial, which is slow
    if logs_here:
        refuse_read_only()
    from culm.terminal.slow_trial import told_while_slow

    with told_while_slow("the job is tried on two microbatches", partial(print, file=sys.stderr)):
        import torch  # takes seconds on a busy machine, too

        from culm.pipeline.identity import options_changed
        from culm.pipeline.user_code.check import check_job
        from culm.pipeline.user_code.exits import ProcessEnded, caught
        from culm.pipeline.user_code.model import ModelSource
        from culm.stage_server.compute.copying import try_copying, try_going_on
        from culm.stage_server.compute.device import CPU

        torch.set_num_threads(job.job.threads)
        try:
            with caught():
                check_job(job)
                source = ModelSource(job)
                like = source.parameters_like()
                try_copying(source.optimizer, like, job.train.optimizer, CPU)
                if then is not None and (changed := options_changed(then, job)):
                    with_those = with_values(job, {"train.optimizer_args": then.train.optimizer_args})
                    try_going_on(ModelSource(with_those).optimizer, source.optimizer, changed, like, CPU)
        except ProcessEnded as error:
            raise JobError(str(error), f"model.layers, {job.model.layers}", "raise an exception instead") from error


class Resumed(NamedTuple):
    """The checkpoint from which a run goes on: the first step that is still to come, and the job, if it is told."""

    step: int
    job: Job | None


ANEW = Resumed(0, None)


def check_files(job: Job, resume: str, allow: str, new_run: bool) -> Resumed:
    """Looks at the checkpoints that the run would go on from, and write. Raises JobError. Comes before what is slow."""
    from culm.pipeline.checkpoints.storage import check_url

    if job.checkpoint is not None:
        check_url(job.checkpoint.url)
    resumed = _resumed(job, resume, allow)
    refuse_to_write_over(job, resume, new_run)
    return resumed


def _resumed(job: Job, resume: str, allow: str) -> Resumed:
    """Raises JobError where there is no whole checkpoint to go on from, or the job says that it is not of this run."""
    if not resume:
        return ANEW
    from culm.coordinator.edges.archive import in_a_line
    from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
    from culm.coordinator.edges.origins import refuse_nothing, resumable, to_resume
    from culm.pipeline.identity_parts import parse_allowed

    try:
        whole = to_resume(resume)
        refuse_nothing(resume, whole)
    except OSError as error:
        mend = "check the address, the network and your credentials"
        raise JobError(f"it cannot be read ({in_a_line(error)})", f"--resume {shown_url(resume)}", mend) from error
    newest = whole[-1]
    assert newest.manifest is not None
    # The coordinator asks the same, but only once the job has been tried and the nodes are being started.
    resumable(newest, newest.manifest, CoordinatorSettings(job=job, resume=resume, allow=parse_allowed(allow)))
    wrote = parse_job(newest.manifest.job_toml, "the checkpoint's job") if newest.manifest.job_toml else None
    return Resumed(newest.manifest.step, wrote)


def refuse_to_write_over(job: Job, resume: str, new_run: bool) -> None:
    """Raises JobError where the run would write over whole checkpoints, whoever made them, and nobody said so.

    One that resumes from the very URL goes on from the newest of them, as the run that wrote it would have. Of one that
    begins anew, or goes on from an older one, which it is told to, it is said what becomes of those that are newer.
    """
    if job.checkpoint is None:
        return
    from culm.coordinator.edges.archive import in_a_line
    from culm.coordinator.edges.origins import newer_in_words
    from culm.pipeline.checkpoints.manifest import find_checkpoints
    from culm.pipeline.checkpoints.storage import open_fs

    url = job.checkpoint.url
    if new_run:
        with suppress(OSError):  # whoever reads the checkpoint will say so
            if newer := newer_in_words(job, resume):
                print(newer, file=sys.stderr)
        return
    if resume and open_fs(resume)[1].rstrip("/") == open_fs(url)[1].rstrip("/"):
        return
    where = f"checkpoint url {shown_url(url)}"
    try:
        steps = [found.step for found in find_checkpoints(url) if found.manifest is not None]
    except OSError as error:
        mend = "make the storage answer, or start with --new-run, which writes over checkpoints that may be there"
        raise JobError(f"it cannot be read ({in_a_line(error)})", where, mend) from error
    if steps:
        what = f"a whole checkpoint of step {steps[0]} lies there, and this run would write over it"
        mend = f"go on from it with --resume {shown_url(url)}, begin anew over it with --new-run, or name another url"
        if resume and open_fs(resume)[1].rstrip("/").rpartition("/")[0] == open_fs(url)[1].rstrip("/"):
            mend = f"add --new-run, which goes on from {shown_url(resume)} and writes over it, or name another url"
        raise JobError(what, where, mend)


def node_count(job: Job, nodes: int | None, spares: int, where: str = "--nodes and --spares") -> int:
    """How many nodes to start. Raises JobError; ``where``: what they were named by."""
    usual = job.graph.servers if job.graph is not None else job.pipeline.stages
    count = (nodes if nodes is not None else usual) + spares
    if not 1 <= count <= flags.MOST_NODES:
        mend = f"ask for 1 to {flags.MOST_NODES}"
        raise JobError(f"a cluster cannot have {count} nodes", where, mend)
    return count


def run(arguments: argparse.Namespace) -> int:
    from culm.local import nursery
    from culm.local.cluster import USUAL_ADDRESS, LocalCluster, job_folder_of
    from culm.local.kills import missed_in_words, parse_kill, refuse_past
    from culm.local.ports import refuse_open, refuse_taken
    from culm.terminal.outcome import RunFailed
    from culm.terminal.progress import display, in_figures, newest, tensor_workers_in_words

    job = read_job(arguments.job, arguments.set)
    count = node_count(job, arguments.nodes, arguments.spares)
    kills = [parse_kill(text, count, job) for text in arguments.kill]
    refuse_open(arguments.coordinator_address, "--coordinator-address")
    refuse_taken(arguments.coordinator_address, "--coordinator-address")
    resumed = check_files(job, arguments.resume, arguments.allow, arguments.new_run)
    refuse_past(kills, resumed.step)
    if said := unsaved(job, here=True):
        print(said, file=sys.stderr)
    nursery.warm_up()
    try_out(job, then=resumed.job)
    from culm.local.training import train

    interrupts.end_on_sigterm()
    cluster = LocalCluster(
        job,
        job_folder_of(arguments.job),
        count,
        kills,
        arguments.coordinator_address or USUAL_ADDRESS,
        respawn=not arguments.no_respawn,
        resume=arguments.resume,
        allow=arguments.allow,
    )
    print(f"logs: {cluster.folder}", file=sys.stderr)
    outcome, workers = Outcome(), ""  # so far
    try:
        with cluster, display(job.job.name, plain=arguments.json) as shown:
            print(f"coordinator: {cluster.address}", file=sys.stderr)

            def watch(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], so_far: Outcome) -> None:
                nonlocal outcome, workers
                outcome, workers = so_far, tensor_workers_in_words(status) or workers
                shown.watch(status, events, so_far)

            try:
                outcome = train(cluster, watch)
            except KeyboardInterrupt:
                print("culm run: ending every process; Ctrl-C once more ends at once", file=sys.stderr)
                raise
    except RunFailed as error:
        _look_again(outcome, job, arguments.new_run)
        _say_checkpoint(outcome, sys.stderr)
        print(f"culm run: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        _look_again(outcome, job, arguments.new_run)
        _say_checkpoint(outcome, sys.stderr)
        print("culm run: interrupted; every process is ended", file=sys.stderr)
        return 130
    code = os.EX_OK
    if outcome.checkpoint_fault:  # the weights are given all the same
        print(f"culm run: the last checkpoint is not whole: {outcome.checkpoint_fault}", file=sys.stderr)
        code = 1
    if missed := missed_in_words(kills, cluster.deaths):
        print(missed, file=sys.stderr)
    written = bool(arguments.out) and _write(arguments.out, outcome)
    if arguments.out and not written:
        code = 1
    if arguments.json:
        print(json.dumps(outcome.as_json()))
        return code
    of = of_chunks(job.graph.chunks if job.graph is not None else 0)
    rate = of.speed(job.samples_per_step * len(outcome.losses) / outcome.seconds)
    reached = in_figures(newest(outcome))
    print(", ".join(filter(None, [f"{len(outcome.losses)} {of.step}s in {outcome.seconds:.1f} s", rate, reached])))
    if outcome.stopped_early:
        print(outcome.stopped_early)
    if outcome.evaluations:
        step, found = max(outcome.evaluations.items())
        print(f"evaluated after {of.step} {step}: {in_figures(found)}")
    if workers:
        print(workers)
    for x in outcome.losses_of_nodes:
        print(
            f"survived losing {x['node']} ({of.part} {x['stage']}) in {of.step} {x['step']}: detected after "
            f"{x['detect_ms']:.0f} ms, resumed after {x['resume_ms']:.0f} ms, {x['redone']} instructions redone"
        )
    _say_checkpoint(outcome, sys.stdout)
    if written:
        print(f"weights: {arguments.out}")
    elif job.checkpoint is None:
        print("weights: not kept; --out FILE writes them, and a [checkpoint] section of the job saves them on the way")
    print(f"weights_sha256 {outcome.sha256}")
    return code


def _write(out: str, outcome: Outcome) -> bool:
    """Whether the weights could be written. Where the disk has filled up meanwhile, what was there before still is."""
    from culm.pipeline.checkpoints.digest import save_weights

    try:
        save_weights(out, outcome.layers)
    except OSError as error:
        what = f"the weights cannot be written ({error})"
        if outcome.checkpoint and not outcome.checkpoint_fault:
            what += f"; culm checkpoint export {shown_url(outcome.checkpoint)} --out FILE writes them elsewhere"
        print(f"culm run: --out {out}: {what}", file=sys.stderr)
        return False
    return True


def _look_again(outcome: Outcome, job: Job, new_run: bool) -> None:
    """Nodes may have made another checkpoint whole while they ended, which no status told any more."""
    from culm.pipeline.checkpoints.manifest import find_checkpoints

    if job.checkpoint is None or new_run:  # a run that began anew may lie beside newer ones of another
        return
    with suppress(OSError):
        whole = [found for found in find_checkpoints(job.checkpoint.url) if found.manifest is not None]
        if whole and whole[0].step > outcome.first_step:
            outcome.checkpoint = whole[0].url


def _say_checkpoint(outcome: Outcome, to: TextIO) -> None:
    """Where the newest whole checkpoint of the run lies, and what it is good for."""
    if outcome.checkpoint:
        uses = "--resume goes on from it, and culm checkpoint export writes its weights as one file"
        print(f"checkpoint: {shown_url(outcome.checkpoint)}; {uses}", file=to)
