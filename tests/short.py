"""Instructions and keys in short, of a job with one pipeline."""

from culm.pipeline.instruction import Duty, Instruction, Pass
from culm.pipeline.keys import ACTIVATION, GRADIENT, Key, reduced

PIPELINE = 0


def duty(stage: int) -> Duty:
    return Duty(PIPELINE, stage)


def unit(stage: int, op: Pass, microbatch: int) -> Instruction:
    return Instruction(duty(stage), op, microbatch)


def activation(stage: int, microbatch: int, step: int = 0) -> Key:
    return Key(0, step, PIPELINE, ACTIVATION, stage, microbatch)


def gradient(stage: int, microbatch: int, step: int = 0) -> Key:
    return Key(0, step, PIPELINE, GRADIENT, stage, microbatch)


def reduced_gradient(stage: int, layer: int, step: int = 0) -> Key:
    return reduced(0, step, stage, layer)
