"""``culm profile``: what each layer of a job takes on this machine, for ``culm plan`` and ``culm simulate``."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from culm.commands.run import read_job
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.simulator.markets.job_profile import Layer, Profile, of_job, profile_to_json
from culm.terminal import flags
from culm.terminal.progress import counted

if TYPE_CHECKING:
    import torch

    from culm.pipeline.tensors.pytrees import Pytree
    from culm.pipeline.user_code.forwards import Forwards

ROUNDS = 5


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "profile",
        help="how long each layer of a job takes on this machine",
        description="Runs microbatches through the model, layer by layer. Writes for each layer the seconds forward "
        "and backward, the parameters, and the bytes passed on. Run it on the kind of machine that you mean to rent.",
        epilog="example: culm profile examples/digits_mlp.toml --out digits.json",
    )
    parser.add_argument("job", metavar="JOB.toml", help="the job file")
    parser.add_argument(
        "--rounds",
        type=flags.whole(1, 100_000),
        default=ROUNDS,
        metavar="N",
        help=f"microbatches to time; default: {ROUNDS}",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a key of the job"
    )
    parser.add_argument("--out", type=flags.new_file, metavar="FILE", help="write the profile there; default: stdout")
    parser.set_defaults(command=profile)


def profile(arguments: argparse.Namespace) -> int:
    job = read_job(arguments.job, arguments.set)
    found = measure(job, arguments.rounds)
    if not arguments.out:
        print(profile_to_json(found), end="")
        return 0
    try:
        Path(arguments.out).write_text(profile_to_json(found), encoding="utf-8")
    except OSError as error:
        what, mend = f"the profile cannot be written ({error.strerror})", "give the path of a file to write"
        raise JobError(what, arguments.out, mend) from error
    forward, backward = (sum(getattr(layer, name) for layer in found.layers) for name in ("forward", "backward"))
    print(
        f"{arguments.out}: {len(found.layers)} layers, a microbatch takes {forward * 1e3:.1f} ms forward and "
        f"{backward * 1e3:.1f} ms backward"
    )
    return 0


def measure(job: Job, rounds: int) -> Profile:
    """Medians of so many microbatches, after one to warm up. Raises JobError for a model that does not run."""
    import torch

    from culm.pipeline.tensors.pytrees import mapped
    from culm.pipeline.user_code.data import microbatches_of
    from culm.pipeline.user_code.devices import device_of
    from culm.pipeline.user_code.forwards import Forwards
    from culm.pipeline.user_code.model import ModelSource

    torch.set_num_threads(job.job.threads)
    source, device = ModelSource(job), device_of(job)
    model = [source.build(index).to(device) for index in range(source.layer_count)]
    data = microbatches_of(job, "data", source.dataset())
    forward: list[list[float]] = [[] for _ in model]
    backward: list[list[float]] = [[] for _ in model]
    sizes = [0] * len(model)
    for number in range(rounds + 1):
        parts = data.microbatch(0, 0, number % job.pipeline.microbatches)
        x, target = (mapped(lambda tensor: tensor.to(device), part) for part in parts)
        for index, ahead, back, size in _passes(model, source.loss, x, target, Forwards(job)):
            sizes[index] = size
            if number:  # the first one warms up
                forward[index].append(ahead)
                backward[index].append(back)
        counted(f"{number} of {rounds} microbatches")
    counted("")
    layers = [
        Layer(median(forward[i]), median(backward[i]), sum(p.numel() for p in layer.parameters()), sizes[i])
        for i, layer in enumerate(model)
    ]
    return of_job(job, layers, f"measured: {rounds} microbatches, {job.job.threads} thread(s), {device.type}")


def _passes(
    model: "list[torch.nn.Module]", loss: object, x: "Pytree", target: "Pytree", forwards: "Forwards"
) -> Iterator[tuple[int, float, float, int]]:
    """Index, seconds forward and backward, bytes passed on, of each layer for one microbatch; the last one first."""
    import torch

    from culm.pipeline.tensors.pytrees import mapped, tensors_in

    def received(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().requires_grad_() if tensor.is_floating_point() or tensor.is_complex() else tensor

    kept: list[tuple[list[torch.Tensor], list[torch.Tensor], float]] = []
    for index, layer in enumerate(model):
        if index > 0:
            x = mapped(received, x)
        began = _now(tensors_in(x))
        y = forwards.run(layer, x, 0)
        if index == len(model) - 1:
            with forwards.precision():
                y = loss(y, target)  # type: ignore[operator]
        kept.append((tensors_in(x), tensors_in(y), _now(tensors_in(y)) - began))
        x = y
    gradients: list[torch.Tensor | None] = [None]  # of what a layer passed on, as its tensors come; of the loss: none
    for index in reversed(range(len(model))):
        given, passed, seconds = kept[index]
        began = _now(passed)
        pairs = zip(passed, gradients, strict=True)
        told = [(y, g) for y, g in pairs if y.requires_grad and (g is not None or y.dim() == 0)]
        if told:
            torch.autograd.backward([y for y, _ in told], [g for _, g in told])
        yield index, seconds, _now(passed) - began, sum(y.numel() * y.element_size() for y in passed)
        gradients = [tensor.grad for tensor in given]


def _now(tensors: "list[torch.Tensor]") -> float:
    import time

    if tensors and tensors[0].is_cuda:
        import torch

        torch.cuda.synchronize(tensors[0].device)
    return time.perf_counter()
