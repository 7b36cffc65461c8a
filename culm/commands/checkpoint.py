"""``culm checkpoint``: which checkpoints there are, whether they are whole, and one as a file for plain PyTorch."""

import argparse
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from culm.pipeline.checkpoints import evaluation_file
from culm.pipeline.checkpoints.manifest import (
    CheckpointCorrupt,
    Found,
    checkpoints_at,
    completed_at,
    find_checkpoints,
    problems,
    step_of,
)
from culm.pipeline.errors import JobError
from culm.pipeline.job import parse_job
from culm.terminal import flags

HF_LAYERS = "culm.models.hf:layers"
Action = Callable[[argparse.Namespace], int]


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "checkpoint",
        help="list, verify and export checkpoints; have a run write one now",
        description="Lists, verifies or exports the checkpoints under a URL: file://, s3://, gs://, az:// or a path. "
        "culm checkpoint now has a run write one.",
        epilog="example: culm checkpoint export file:///tmp/culm --out model.safetensors",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    examples = "example: culm checkpoint {} file:///tmp/culm"
    ls = actions.add_parser("ls", help="list all checkpoints, newest first", epilog=examples.format("ls"))
    ls.set_defaults(command=partial(_reached, _ls))
    verify = actions.add_parser("verify", help="compare every file with its hash", epilog=examples.format("verify"))
    verify.set_defaults(command=partial(_reached, _verify))
    now = actions.add_parser(
        "now",
        help="have a run write one with its next commit, and wait until it is whole",
        description="Asks the run for a checkpoint of its next commit, or of the present step where it is paused. "
        "Waits until every file of it is written, and prints its step and URL.",
        epilog="example: culm checkpoint now --coordinator 127.0.0.1:7070",
    )
    flags.add_coordinator(now)
    patience = "how long to wait for it; default: 600"
    now.add_argument("--timeout", type=flags.seconds, default=600.0, metavar="SECONDS", help=patience)
    now.add_argument("--json", action="store_true", help="print the result as JSON")
    now.set_defaults(command=_now)
    export = actions.add_parser(
        "export",
        help="write one safetensors file, with the keys of an nn.Sequential's state dict, or a Hugging Face folder",
        epilog=f"{examples.format('export')} --out model.safetensors",
    )
    to = export.add_mutually_exclusive_group(required=True)
    to.add_argument("--out", type=flags.new_file, metavar="FILE", help="the file to write")
    to.add_argument(
        "--hf",
        type=flags.new_folder,
        metavar="FOLDER",
        help="the folder to write for transformers' from_pretrained, of a job whose layers are culm.models.hf:layers",
    )
    what = export.add_mutually_exclusive_group()
    what.add_argument("--average", action="store_true", help="the moving averages of train.average")
    what.add_argument(
        "--optimizer",
        action="store_true",
        help="with --out: the optimizer's state beside the weights, for torch.load; imports the job's code",
    )
    export.set_defaults(command=partial(_reached, _export))
    for action in (ls, verify, export):
        action.add_argument("url", type=flags.url, metavar="URL", help="the job's [checkpoint] url, or URL/step-...")
        action.add_argument("--json", action="store_true", help="print the result as JSON")
    for action in (verify, export):
        which = action.add_mutually_exclusive_group()
        which.add_argument("--step", type=flags.whole(0, 10**12), metavar="N", help="its step; default: the newest")
        which.add_argument("--best", action="store_true", help="the best one by its job's [evaluate] section")


def _chosen(arguments: argparse.Namespace) -> Found:
    return chosen(arguments.url, arguments.step, arguments.best)


def chosen(url: str, step: int | None, best: bool = False) -> Found:
    """The checkpoint that is meant, also by the URL of its own folder. Raises JobError when there is none."""
    found = checkpoints_at(url)
    if best:
        return _best(found, url)
    wanted = [f for f in found if step is None or f.step == step]
    if not wanted:
        beside = found if step_of(url) is None else find_checkpoints(url.rstrip("/").rpartition("/")[0])
        there = ", ".join(str(f.step) for f in beside)
        what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        mend = f"choose one of the steps that are there: {there}" if there else "nothing is there: check the address"
        raise JobError(f"there is {what}", url, mend)
    whole = [f for f in wanted if f.manifest is not None]
    if step is None:
        from culm.coordinator.edges.origins import refuse_mixed

        refuse_mixed(whole, url, lambda found: f"--step {found.step}")
    return (whole or wanted)[0]


def _best(found: list[Found], url: str) -> Found:
    """Of the newest one's run, by what its job calls best. Raises JobError where none was evaluated as it says."""
    from culm.coordinator.edges.origins import numbers_of, of_its_run, refuse_mixed

    whole = [f for f in found if f.manifest is not None]
    refuse_mixed(whole, url, lambda found: f"--step {found.step}")
    toml = whole[0].manifest.job_toml if whole and whole[0].manifest is not None else ""
    job = parse_job(toml, "the checkpoint's job") if toml else None
    if job is not None and job.evaluate is not None:
        ours = {f.step: f for f in of_its_run(whole, job)}
        best = job.best.of({step: numbers_of(f, job) for step, f in ours.items()})
        if best is not None:
            return ours[best]
    raise JobError("no checkpoint was evaluated", url, "choose one with --step, from culm checkpoint ls")


def _reached(action: Action, arguments: argparse.Namespace) -> int:
    try:
        return action(arguments)
    except OSError as error:
        raise unreadable(error, arguments.url) from error


def unreadable(error: OSError, url: str) -> JobError:
    """As the user is told that the storage does not answer."""
    what = " ".join(str(error).split())  # a storage's own text may have several lines
    mend = "check the address, the network and your credentials"
    return JobError(f"the storage cannot be read ({what})", url, mend)


def _now(arguments: argparse.Namespace) -> int:
    import grpc

    from culm.pipeline.rpc.channel import details
    from culm.terminal.client import connect
    from culm.terminal.save_now import save_now

    channel, stub = connect(arguments.coordinator)
    with channel:
        try:
            saved = save_now(stub, arguments.timeout, lambda line: print(line, file=sys.stderr, flush=True))
        except grpc.RpcError as error:
            where, mend = f"--coordinator {arguments.coordinator}", "see the coordinator's log"
            raise JobError(details(error), where, mend) from error
    if saved.refused:
        what, _, mend = saved.problem.partition(": ")
        raise JobError(what, f"--coordinator {arguments.coordinator}", mend or "see culm status")
    if saved.problem:
        print(f"culm checkpoint: {saved.problem}", file=sys.stderr)
        return 1
    print(json.dumps({"step": saved.step, "url": saved.url}) if arguments.json else f"step {saved.step}: {saved.url}")
    return 0


def _row(found: Found) -> dict[str, object]:
    """One checkpoint, by the names that scripts rely on. ``completed`` is ISO 8601 in UTC. None: not known."""
    manifest = found.manifest
    completed = completed_at(found.url) if manifest is not None else None
    return {
        "step": found.step,
        "url": found.url,
        "whole": manifest is not None,
        "problem": found.problem,
        "job": manifest.job if manifest else None,
        "layers": len(manifest.files) if manifest else None,
        "bytes": manifest.size if manifest else None,
        "completed": completed.isoformat(timespec="seconds") if completed else None,
        "loss": manifest.loss if manifest and math.isfinite(manifest.loss) else None,
        "evaluated": evaluation_file.finite(found.evaluated) or None,
    }


def _ls(arguments: argparse.Namespace) -> int:
    found = checkpoints_at(arguments.url)
    if arguments.json:
        print(json.dumps([_row(f) for f in found]))
        return 0
    if not found:
        print(f"no checkpoints at {arguments.url}")
        return 0
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("step", "layers", "MB", "completed", "loss", "evaluated", "state", box=None, padding=(0, 2))
    for f in found:
        if f.manifest is None:
            table.add_row(str(f.step), "", "", "", "", "", f"[yellow]incomplete: {escape(f.problem)}")
        else:
            completed = completed_at(f.url)
            when = f"{completed.astimezone():%Y-%m-%d %H:%M}" if completed else "-"
            size = f"{f.manifest.size / 1e6:.1f}"
            loss = f"{f.manifest.loss:.4f}"
            evaluated = escape(evaluation_file.in_words(f.evaluated))
            table.add_row(str(f.step), str(len(f.manifest.files)), size, when, loss, evaluated, "[green]complete")
    Console().print(table)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    chosen = _chosen(arguments)
    wrong = problems(chosen.url, chosen.manifest) if chosen.manifest is not None else [chosen.problem]
    if arguments.json:
        print(json.dumps({"step": chosen.step, "url": chosen.url, "problems": wrong}))
    else:
        print("\n".join(wrong) if wrong else f"{chosen.url}: every file has its hash")
    return 1 if wrong else 0


def _export(arguments: argparse.Namespace) -> int:
    from culm.pipeline.checkpoints.layer_file import export

    if (arguments.out or "").endswith(flags.OF_TORCH) and not arguments.optimizer:
        raise JobError(flags.NO_SAFETENSORS, f"--out {arguments.out}", "name it .safetensors, or add --optimizer")
    if arguments.optimizer and (arguments.out or "").endswith(flags.OF_SAFETENSORS):
        what = "is named as safetensors, and the state is written for torch.load"
        raise JobError(what, f"--out {arguments.out}", "name it .pt")
    if arguments.optimizer and arguments.out is None:
        raise JobError("a Hugging Face folder holds no optimizer", "--optimizer", "export one file with --out")
    chosen = _chosen(arguments)
    tokenizer = ""
    try:
        if arguments.optimizer:
            _export_state(chosen, arguments.out)
        elif arguments.hf is not None:
            tokenizer = _export_folder(chosen, arguments.hf, arguments.average)
        else:
            export(chosen.url, arguments.out, arguments.average)
    except CheckpointCorrupt as error:
        print(f"culm checkpoint: {error.problem}; export the one before with --step", file=sys.stderr)
        return 1
    out = arguments.hf or arguments.out
    if arguments.json:
        more = {"tokenizer": tokenizer or None} if arguments.hf is not None else {}
        print(json.dumps({"step": chosen.step, "out": out, **more}))
    else:
        print(f"{out}: step {chosen.step}{f', with the tokenizer of {tokenizer}' if tokenizer else ''}")
    if arguments.hf is not None and not tokenizer:
        add = f"AutoTokenizer.from_pretrained(...).save_pretrained({arguments.hf!r}) adds one"
        print(f"{arguments.hf} has no tokenizer: no folder that the job names has a whole one; {add}", file=sys.stderr)
    return 0


def _export_state(chosen: Found, out: str) -> None:
    """Raises CheckpointCorrupt, and JobError for what plain PyTorch would not go on with, or cannot read."""
    import pickle

    import torch

    from culm.pipeline.private import EXPORT, write_whole
    from culm.stage_server.compute.plain_state import plain_state

    state = plain_state(chosen.url)

    def write(part: Path) -> None:
        torch.save(state, part)
        torch.load(part, weights_only=True, mmap=True)

    try:
        write_whole(out, write, EXPORT)
    except pickle.UnpicklingError as error:
        what = f"the scheduler's state is more than numbers and texts ({' '.join(str(error).split())[:80]})"
        raise JobError(what, "train.schedule", "export the weights alone, without --optimizer") from error
    except OSError as error:
        raise JobError(f"the export cannot be written ({error})", out, "choose another file") from error


def _export_folder(chosen: Found, folder: str, average: bool) -> str:
    """Returns the folder of the tokenizer that goes with it, if there is one. Raises JobError for other layers."""
    from culm.pipeline.checkpoints.layer_file import weights_of

    job = parse_job(chosen.manifest.job_toml) if chosen.manifest is not None and chosen.manifest.job_toml else None
    if job is None or job.model.layers != HF_LAYERS:
        what = f"its layers are {job.model.layers if job is not None else 'not known'}, and --hf wants {HF_LAYERS}"
        raise JobError(what, chosen.url, "export one file with --out")
    from culm.models.hf import save_folder, save_tokenizer

    save_folder(folder, weights_of(chosen.url, average), **job.model.args)
    evaluated = job.evaluate.args if job.evaluate is not None else {}
    named = (job.data.args.get("tokenizer"), evaluated.get("tokenizer"), job.model.args.get("model"))
    try:
        return save_tokenizer(folder, (place for place in named if isinstance(place, str)))
    except JobError as error:  # the weights are there all the same
        print(error, file=sys.stderr)
        return ""
