"""What dropped samples cost in learning: Bamboo's second strawman, trained for real, beside Culm's exact curve.

``python -m benchmarks.sample_dropping`` trains a small GPT in one process, seed by seed. It writes
``benchmarks/sample_dropping.json``, a picture beside it, and ``docs/sample_dropping.md``. With ``--page`` it makes the
page and the picture again from the results that are there.
"""

# A machine is lost, so its pipeline adds nothing for a while: its samples of these steps are dropped, and the learning
# rate is taken down in ratio to the samples that are left (Bamboo, NSDI 2023, section 3). Culm redoes what was lost, so
# whatever is lost its curve is the plain loop's. That one is ``culm.oracle.plain_loop`` itself; the other loop here has
# the same gradients, and with nothing dropped the same bits (tests/unit/test_sample_dropping.py).
#
# How a chance for an hour becomes a share of dropped samples: of 48 machines in four pipelines one of a pipeline's
# twelve is lost with a rate of 12 * -ln(1 - p) / 3600 a second, and then the pipeline is out for 83 s. The published
# run has 22,194 steps of 1.45 s, so an outage is 57 of them; of the few steps here that is less than one. So a pipeline
# misses each step by itself, with the share for a chance.

import argparse
import json
import math
import random
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from culm.engines.spread import spread
from culm.examples.stdlib_gpt import Text, dataset
from culm.oracle.plain_evaluation import PlainEvaluation
from culm.oracle.plain_loop import run_plain
from culm.oracle.plain_passes import ChainPasses
from culm.pipeline.job import Job, job_of
from culm.pipeline.user_code.data import dataset_of
from culm.pipeline.user_code.model import ModelSource

RESULTS = Path(__file__).with_name("sample_dropping.json")
STAGES, PIPELINES, OUT_SECONDS = 12, 4, 83.0  # of BERT in Bamboo's simulator
RATES = (0.01, 0.1, 0.25, 0.5)  # the chance for an hour to lose a machine
SHARES = (0.25, 0.5)  # dropped, whatever leads to it
CONTEXT, STEPS, EVERY, SEEDS = 32, 240, 20, 4
HELD_OUT = 256  # samples

Curve = list[tuple[int, int, float]]  # steps, samples that were trained on, loss on what is held out


def share_of(rate: float) -> float:
    """Of the samples that are dropped, at a chance for an hour to lose a machine."""
    lost = STAGES * -math.log(1.0 - rate) / 3600.0 * OUT_SECONDS
    return lost / (1.0 + lost)


def trained_on(context: int) -> torch.utils.data.Dataset[Any]:
    """All windows of the text but those that are held out."""
    text = dataset(context)
    return torch.utils.data.Subset(text, range(HELD_OUT, len(text)))


def held_out(context: int) -> Text:
    """The first windows; an evaluation takes as many as it asks for."""
    return dataset(context)


def job(seed: int, steps: int = STEPS, every: int = EVERY) -> Job:
    """Four pipelines, a microbatch of eight samples each."""
    return job_of(
        {
            "job": {"name": "sample-dropping", "steps": steps, "seed": seed},
            "model": {
                "layers": "culm.examples.stdlib_gpt:layers",
                "args": {"depth": 2, "width": 64, "heads": 4, "context": CONTEXT, "dropout": 0.0},
            },
            "data": {
                "dataset": "benchmarks.sample_dropping:trained_on",
                "args": {"context": CONTEXT},
                "microbatch": 8,
                "shuffle": True,
            },
            "train": {
                "loss": "culm.examples.stdlib_gpt:loss",
                "optimizer": "torch.optim:AdamW",
                "optimizer_args": {"lr": 3e-3},
            },
            "pipeline": {"stages": 1, "pipelines": PIPELINES, "microbatches": 1},
            "evaluate": {
                "dataset": "benchmarks.sample_dropping:held_out",
                "args": {"context": CONTEXT},
                "every": every,
                "samples": HELD_OUT,
            },
        },
        "the benchmark's job",
    )


def exact(seed: int, steps: int = STEPS, every: int = EVERY) -> Curve:
    """Of a run that loses nodes and no sample: the plain loop's."""
    asked = job(seed, steps, every)
    return [(at, at * asked.samples_per_step, found["loss"]) for at, found in run_plain(asked).evaluations.items()]


def added(each: Sequence[Any]) -> Any:
    """As the tree over pipelines adds."""
    if len(each) == 1:
        return each[0]
    half = 1 << (len(each) - 1).bit_length() - 1
    return added(each[:half]) + added(each[half:])


def dropping(seed: int, share: float, steps: int = STEPS, every: int = EVERY) -> Curve:
    """Of a run in which each pipeline misses each step with this chance: until it has had all samples of ``steps``."""
    asked = job(seed, steps, every)
    torch.set_num_threads(1)
    source = ModelSource(asked)
    model = [source.build(index) for index in range(source.layer_count)]
    named = [(i, n, p) for i, layer in enumerate(model) for n, p in layer.named_parameters()]
    parameters = [parameter for _, _, parameter in named]
    optimizer = source.optimizer(source.grouped(iter(named)))
    passes = ChainPasses(asked, source, model, parameters)
    evaluation = PlainEvaluation(asked, model, source.loss, dataset_of(asked, "evaluate"))
    usual = [group["lr"] for group in optimizer.param_groups]
    drawn = random.Random(f"{seed} {share}")
    curve: Curve = []
    whole, samples, step = steps * asked.samples_per_step, 0, 0
    while True:
        if (step and step % every == 0) or samples >= whole:
            curve.append((step, samples, evaluation.run(step, added)["loss"]))
        if samples >= whole:
            return curve
        kept = [p for p in range(PIPELINES) if drawn.random() >= share]
        if kept:
            gradients = passes.passes(step).gradients
            left = len(kept) / PIPELINES
            for parameter, of_pipelines in zip(parameters, zip(*gradients, strict=True), strict=True):
                total = added([of_pipelines[p] for p in kept])
                parameter.grad = total if left == 1.0 else total / left  # the mean over the samples that are left
            for group, rate in zip(optimizer.param_groups, usual, strict=True):
                group["lr"] = rate * left
            optimizer.step()
        samples += len(kept) * asked.samples_per_step // PIPELINES
        step += 1


# ---- all of it -------------------------------------------------------------------------------------------------------
def name_of(share: float) -> str:
    return f"{share:.6f}"


def shares() -> list[float]:
    return [*map(share_of, RATES), *SHARES]


def _curve(steps: int, every: int, asked: tuple[float | None, int]) -> Curve:
    share, seed = asked
    return exact(seed, steps, every) if share is None else dropping(seed, share, steps, every)


def measure(processes: int, steps: int = STEPS, every: int = EVERY, seeds: int = SEEDS) -> dict[str, Any]:
    """The curves of every seed: by share, "exact" among them."""
    names: dict[float | None, str] = {None: "exact", **{share: name_of(share) for share in shares()}}
    asked = [(share, seed) for share in names for seed in range(seeds)]
    curves: dict[str, list[Curve]] = {}
    with spread(processes=processes) as each:
        for (share, _), found in zip(asked, each(partial(_curve, steps, every), asked), strict=True):
            curves.setdefault(names[share], []).append(found)
    return {"steps": steps, "every": every, "seeds": seeds, "torch": torch.__version__, "curves": curves}


def paired(results: dict[str, Any], name: str, by_samples: bool) -> tuple[float, float]:
    """By how much the loss is higher than the exact one at the end, and the standard error of that, over seeds.

    After as many steps, or ``by_samples`` after as many samples.
    """
    differences = []
    for of_seed, of_exact in zip(results["curves"][name], results["curves"]["exact"], strict=True):
        at = of_seed[-1] if by_samples else next(x for x in of_seed if x[0] == results["steps"])
        differences.append(at[2] - of_exact[-1][2])
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
    return statistics.mean(differences), error


def mean_loss(results: dict[str, Any], name: str) -> list[tuple[float, float, float]]:
    """Steps, samples and loss, as means over the seeds, where all of them have a point."""
    rows = zip(*results["curves"][name], strict=False)
    means = [tuple(statistics.mean(column) for column in zip(*row, strict=True)) for row in rows]
    return cast("list[tuple[float, float, float]]", means)


def main() -> None:
    from benchmarks import sample_dropping_page as page

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--page", action="store_true", help="make the page and the picture from what was measured")
    arguments = parser.parse_args()
    if not arguments.page:
        RESULTS.write_text(json.dumps(measure(arguments.processes)) + "\n")
    page.write(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
