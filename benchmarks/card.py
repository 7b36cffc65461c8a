"""What a node's work takes on a card, beside plain PyTorch: ``python -m benchmarks.card`` runs both in turn.

Four stages of one Transformer block each. The node has the second one and stands by for the third, as in a calm run.
Each line is the median of the rounds, in milliseconds, and how many times as long it takes as plain PyTorch does:

- forward, backward: an instruction, to the moment when the card is done. Plain: the same block and ``backward``.
- redundant forward: on the standby's block, its graph copied to the host's memory. Plain: the forward alone.
- copy: the stage's output to the host's memory. Plain: one copy into pinned memory that is there already.
- step: AdamW's on the owner's block, the gradient's way to the card included. "From the host": on a block whose state
  lies in the host's memory (``standby = "host"``), the way there and back included. Plain: ``optimizer.step()`` alone.

Where there is no card, ``--device cpu`` with a small ``--width`` shows that it runs.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from culm.pipeline.instruction import Duty, Instruction, Pass
from culm.pipeline.job import Job, load_job
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.compute import Compute
from culm.stage_server.compute.device import Device, device_for
from culm.stage_server.worker.work import Apply, Arrange, Run

JOB = """
[job]
name = "card"
steps = 1
device = "{device}"
[model]
layers = "benchmarks.card:blocks"
args = {{ width = {width} }}
[data]
dataset = "benchmarks.paced:dataset"
microbatch = 1
[train]
loss = "torch.nn.functional:mse_loss"
optimizer = "torch.optim:AdamW"
optimizer_args = {{ lr = 1e-4 }}
[pipeline]
stages = 4
microbatches = 4
[resilience]
redundancy = "eager"
standby = "host"
"""
OWNED, STOOD_BY, BY_STATE_ALONE = Duty(0, 1), Duty(0, 2), 3  # two stages, and a layer
WARM_UP = 3  # rounds


def blocks(width: int) -> list[nn.Module]:
    return [
        nn.TransformerEncoderLayer(width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True)
        for _ in range(4)
    ]


def job_of(device: str, width: int) -> Job:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_text(JOB.format(device=device, width=width))
        return load_job(path)


class Bench:
    """A node's compute and the plain block that it is measured against."""

    def __init__(self, job: Job, width: int, batch: int, length: int) -> None:
        self.device: Device = device_for(job)
        self.compute = Compute(job, ModelSource(job), self.device)
        self.compute.warm_up()
        duties = (OWNED, range(1, 2)), (STOOD_BY, range(2, 3))
        self.compute.do(Arrange(layers=(1, 2, 3), duties=duties, stages=4, step=0, anew=True))
        self.block = ModelSource(job).build(1).to(self.device.place)
        self.optimizer = torch.optim.AdamW(self.block.parameters(), lr=1e-4)
        self.x = torch.randn(batch, length, width)
        self.upstream = torch.randn(batch, length, width)
        self.pinned = self.device.home(self.device.here(torch.zeros(batch, length, width)))
        self.device.copied().wait()
        self.seconds: dict[str, list[float]] = {}

    def gradient_of(self, parameter: nn.Parameter) -> torch.Tensor:
        """In the host's memory, as another node's is."""
        assert parameter.grad is not None
        return parameter.grad.cpu()

    def timed(self, name: str, work: Callable[[], object]) -> None:
        """From a device that has nothing to do until it has nothing to do again."""
        self.device.computed().wait()
        start = time.perf_counter()
        work()
        self.device.computed().wait()
        self.device.copied().wait()
        self.seconds.setdefault(name, []).append(time.perf_counter() - start)

    def instruction(self, step: int, duty: Duty, op: Pass, operand: Value) -> Callable[[], object]:
        tenure = 1 if duty == OWNED else -1
        run = Run(instruction=Instruction(duty, op, 0), step=step, tenure=tenure, operands=(operand,))
        return partial(self.compute.do, run)

    def step(self, step: int) -> None:
        given = Value.activation(self.x.requires_grad_(), None)
        self.timed("forward", self.instruction(step, OWNED, "F", given))
        self.timed("backward", self.instruction(step, OWNED, "B", Value.gradients({0: self.upstream})))
        self.timed("redundant forward", self.instruction(step, STOOD_BY, "F", given))

        x, upstream = self.device.here(self.x.detach()).requires_grad_(), self.device.here(self.upstream)
        outputs: list[torch.Tensor] = []
        self.timed("plain forward", lambda: outputs.append(self.block(x)))
        (output,) = outputs
        self.timed("plain backward", partial(torch.autograd.backward, output, upstream))
        self.timed("copy", lambda: self.device.home(output))
        self.timed("plain copy", lambda: self.pinned.copy_(output.detach(), non_blocking=True))

        grads = tuple((f"grad.{name}", self.gradient_of(p)) for name, p in self.block.named_parameters())
        for name, layer in (("step", OWNED.stage), ("step from the host", BY_STATE_ALONE)):
            apply = Apply(step, 1.0, ((layer, (Value(grads),)),))
            self.timed(name, partial(self.compute.do, apply))
        self.timed("plain step", self.optimizer.step)
        self.optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    bench = Bench(job_of(arguments.device, arguments.width), arguments.width, arguments.batch, arguments.length)
    for number in range(WARM_UP + arguments.rounds):
        bench.step(number)
    found = {name: statistics.median(seconds[WARM_UP:]) for name, seconds in bench.seconds.items()}
    size = sum(p.numel() for p in bench.block.parameters())
    print(f"{size / 1e6:.1f} M parameters a block, {bench.x.numel() * 4 / 1e6:.1f} MB an activation")
    plain = {"redundant forward": "plain forward", "step from the host": "plain step"}
    for name, seconds in found.items():
        if not name.startswith("plain"):
            other = found[plain.get(name, f"plain {name}")]
            print(f"{name}: {seconds * 1e3:.3f} ms, plain {other * 1e3:.3f} ms, {seconds / other:.2f}")


if __name__ == "__main__":
    main()
