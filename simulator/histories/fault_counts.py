"""How much goes wrong in a simulated cluster, and what an operator does."""

from dataclasses import dataclass

from culm.pipeline.instruction import Instruction


@dataclass(frozen=True)
class Kill:
    """Kill (or freeze for good) the node when it has finished this instruction of this step."""

    node: str
    step: int
    instruction: Instruction
    freeze: bool = False


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How often something goes wrong, each time at a random moment."""

    disturb: int = 1  # nodes are killed or frozen, or lose a stream
    outages: int = 0  # of coordinators, Redis and the network
    reducers: int = 0  # a node is killed when it has just summed up a layer, or sent one while others are to follow
    changes: int = 0  # nodes are drained, or join
    warnings: int = 0  # of machines that may have to go
    links: int = 0  # two nodes do not reach each other for a while
    for_good: bool = False  # those two never reach each other again
    storage: int = 0  # the checkpoints' storage fails, or a file of theirs is torn
    leaves: int = 0  # a node ends and says so, often while a new coordinator hears from the nodes
    disks: int = 0  # a node reads other bytes of checkpoints than there are
    forgets: int = 0  # Redis loses what it was given
    power_cuts: int = 0  # every process ends, and Redis comes back older or empty
    stops: int = 0  # coordinators are told to stop, and started again
    pauses: int = 0  # an operator pauses the run, and lets it go on
    saves: int = 0  # an operator asks for a checkpoint
