"""An epoch of training on samples of neighbours instead of all of them, for comparison. Formulas, nothing is played."""

# A mini-batch of targets draws FANOUT[0] neighbours for each, and FANOUT[1] for each of these. Then the features of all
# that were drawn are collected, mostly from other servers, and the model is trained on them:
#
#     drawing       targets x (25 + 25 x 10) neighbours, by the CPUs of each server
#     collecting    each batch's different vertices x features: read by CPUs, sent by others, and copied to a GPU
#     training      sums over what was drawn, and products of the targets' and their neighbours' sums, both ways
#
# Assumed: fan-outs and batch of GraphSAGE's own example; two thirds of the vertices are trained on, as of Reddit's; a
# CPU draws two million neighbours a second; each server takes its share of every batch; the three follow each other and
# do not overlap. As many epochs are needed as with all neighbours.

from dataclasses import dataclass
from math import exp

from culm.simulator.graphs.hardware import CPU_ADDS, Server
from culm.simulator.graphs.published import GraphJob

FANOUT = (25, 10)
BATCH = 1000
TRAINED_ON = 2 / 3
DRAWN = 2e6  # neighbours a second and virtual CPU
CPUS_OF_A_GPU = 8  # of a p3.2xlarge
BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Seconds and dollars of an epoch."""

    drawing: float
    collecting: float
    training: float
    dollars: float

    @property
    def seconds(self) -> float:
        return self.drawing + self.collecting + self.training


def sampled(job: GraphJob, server: Server, servers: int) -> Sampled:
    """On as many servers of that kind. Its draws and reads are done by CPUs, also where it has a GPU."""
    features, hidden = job.sizes[0], job.sizes[1]
    cpus = servers * (CPUS_OF_A_GPU if server.copying else server.cores)
    targets = job.vertices * TRAINED_ON
    drawn = targets * (FANOUT[0] + FANOUT[0] * FANOUT[1])
    batches = targets / BATCH
    rows = batches * job.vertices * (1 - exp(-BATCH * (1 + drawn / targets) / job.vertices))  # different ones
    values = rows * features
    elsewhere = (servers - 1) / servers
    network = values * BYTES * elsewhere / servers / server.network
    copying = values * BYTES / servers / server.copying if server.copying else 0.0
    adds = drawn * features + targets * FANOUT[0] * hidden
    operations = 6 * min(rows, targets * (1 + FANOUT[0])) * features * hidden  # of sums, not of all that was read
    cores = servers * server.cores
    seconds = Sampled(
        drawing=drawn / DRAWN / cpus,
        collecting=values / CPU_ADDS / cpus + network + copying,
        training=adds / server.adds / cores + operations / server.operations / cores,
        dollars=0.0,
    )
    dollars = seconds.seconds * servers * server.dollars / 3600
    return Sampled(drawing=seconds.drawing, collecting=seconds.collecting, training=seconds.training, dollars=dollars)
