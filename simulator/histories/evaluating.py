"""Evaluations in the tiny arithmetic: forwards that leave nothing behind, and what they tell."""

from collections.abc import Sequence

from culm.pipeline import tally
from culm.simulator.histories.arithmetic import PRIME, buffer_of, forward, loss_of


def sample(pipeline: int, microbatch: int) -> int:
    """The same one in each evaluation."""
    return (pipeline * 611_957 + microbatch * 7927 + 23) % PRIME


def evaluate(state: int, x: int, step: int, pipeline: int, microbatch: int, layer: int) -> int:
    """A forward that leaves nothing behind, on the buffer of the step's beginning."""
    return forward(state, buffer_of(state), x * 3 + 1, step, pipeline, microbatch, layer)


def told(output: int) -> tuple[float, float]:
    """Of a microbatch: sum and count of its loss."""
    return loss_of(output), float(1 + output % 3)


def evaluated(states: Sequence[int], step: int, pipelines: int, microbatches: int) -> tuple[float, ...]:
    """What comes of an evaluation of these states, in a loop without nodes."""
    numbers: list[float] = []
    for p in range(pipelines):
        for m in range(microbatches):
            x = sample(p, m)
            for layer, state in enumerate(states):
                x = evaluate(state, x, step, p, m, layer)
            numbers.extend(told(x))
    return tally.means(numbers, 2, pipelines)
