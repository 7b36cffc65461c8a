"""The same kill -9 of one node of a paced pipeline, for Culm and for torchrun with checkpoints, in turn.

``python -m benchmarks.restarts`` prints what it costs each, in seconds, and the ratio.
"""

import argparse
import random
import statistics
from dataclasses import dataclass

from benchmarks import failover, torchrun_restart
from benchmarks.awake import awake_cores
from benchmarks.measure import Measure
from culm.local.kills import Kill
from culm.pipeline.instruction import Duty
from culm.pipeline.schedule import one_f_one_b

LEAST = 0.01  # of a calm step, that counts as lost however little it was: steps differ by as much by themselves


@dataclass(frozen=True)
class Round:
    """What one kill cost, in seconds."""

    ours: float
    torchruns: float

    @property
    def ratio(self) -> float:
        return self.torchruns / self.ours


def both(draw: random.Random) -> Round:
    """A kill at a random instruction of Culm's run, and one at a random moment between two saves of torchrun's."""
    stage = draw.randrange(failover.STAGES)
    at = str(draw.choice(one_f_one_b(Duty(failover.PIPELINE, stage), failover.STAGES, failover.MICROBATCHES)))
    torchruns = torchrun_restart.lost_seconds(stage, draw.randrange(torchrun_restart.EVERY), draw.random())
    # By how much the disturbed step was longer: more than what was lost since the kill, which may be nothing.
    killed = failover.steps_lost("lazy", Kill(f"n{stage}", failover.KILLED, at))
    return Round(max(killed.longer, LEAST) * killed.calm, torchruns)


def restarted(number: int) -> list[Measure]:
    """How many times what Culm loses is lost by starting again from a checkpoint."""
    measure = Measure(
        name="a kill: torchrun + checkpoint restart's lost time over ours", unit="ratio", floor=20, aim=100, higher=True
    )
    measure.rounds = [both(random.Random(number)).ratio]
    return [measure]


@awake_cores()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    rounds = []
    for number in range(arguments.rounds):
        rounds.append(both(draw))
        told = f"ours {rounds[-1].ours:.3f} s, torchrun {rounds[-1].torchruns:.2f} s, {rounds[-1].ratio:.0f} times ours"
        print(f"round {number}: {told}", flush=True)
    ours, torchruns, ratio = zip(*((r.ours, r.torchruns, r.ratio) for r in rounds), strict=True)
    for what, values in (("ours, s", ours), ("torchrun, s", torchruns), ("ratio", ratio)):
        print(f"{what}: {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})", flush=True)


if __name__ == "__main__":
    main()
