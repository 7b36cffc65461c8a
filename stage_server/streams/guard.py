"""The node's gate: what comes from outside is held against ``bounds`` before it is kept (rule 18)."""

from collections.abc import Iterable, Sequence

from culm.pipeline.job import Job
from culm.pipeline.keys import Key
from culm.pipeline.plan import PlanOrder
from culm.pipeline.plan_bounds import order_problem
from culm.pipeline.tensors.buffers import SMALLEST
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.layer_shapes import LayerShapes
from culm.pipeline.user_code.model import ModelSource
from culm.protos import coordinator_pb2 as pb
from culm.protos import stage_pb2, tensor_pb2
from culm.stage_server.streams import stream_bounds as bounds
from culm.stage_server.streams.stream_bounds import RunShape
from culm.stage_server.streams.unfit import Unfit, refuse
from culm.stage_server.worker.worker import Worker


def run_of(job: Job, source: ModelSource) -> RunShape:
    """What the job says of a run before anything of it is heard."""
    shapes = tuple(LayerShapes.of(source.sketch(index)) for index in range(source.layer_count))
    pipeline = job.pipeline
    return RunShape(
        pipelines=pipeline.pipelines,
        microbatches=pipeline.microbatches,
        steps=job.job.steps,
        layers=shapes,
        ties=source.ties,
        tally=job.tally_form,
        evaluations=job.evaluations,
        on_graph=job.graph is not None,
    )


# The guard is asked by threads that do not hold the node's lock: taking it for the first chunk of every tensor would
# have them wait for each other. So what the guard sees of the worker may be a moment old. That is harmless in both
# directions:
#
#     it lets through what the worker drops by now    the worker looks again, under the lock: only memory was spent
#     it passes over what the worker takes by now     nobody acknowledged it, so its sender sends it again under the
#                                                     plan that makes it welcome
#
# Bounds of the run (layers, steps, shapes) never change in a run and need no such care.


class Guard:
    """Each method raises Unfit for what does not fit. Any thread may ask: a look at the worker may be a moment old."""

    def __init__(self, run: RunShape, worker: Worker[Value]) -> None:
        self.run = run
        self._worker = worker

    def hello(self, hello: stage_pb2.Hello) -> None:
        refuse(bounds.hello_problem(hello, self._worker.term))

    def takes(self, peer: str, incarnation: int, order: PlanOrder, key: Key, header: tensor_pb2.ValueHeader) -> bool:
        """Whether the tensor may be of use here; one that the worker would drop needs no memory."""
        refuse(bounds.tensor_problem(key, header, self.run) or order_problem(*order))
        if not self._worker.post.waits(order):
            # A small one the worker drops itself: to ask twice takes longer than to assemble it.
            return header.total_bytes < SMALLEST or not self._worker.post.drops(peer, incarnation, key)
        # A plan that never comes must not fill the memory. Whether the sender may send the tensor cannot be told
        # before that plan is here, so only their number is bounded.
        if self._worker.post.early.count(peer) >= self.run.most_arrivals:
            raise Unfit(f"more than {self.run.most_arrivals} tensors wait for a plan that this node does not have")
        return True

    def answer(self, answer: stage_pb2.DeliverResponse, keys: Iterable[Key]) -> None:
        refuse(bounds.answer_problem(answer, keys, self.run))

    def fetch(self, layers: Sequence[int]) -> None:
        refuse(bounds.fetch_problem(layers, len(self.run.layers)))

    def order(self, order: pb.AttendResponse) -> None:
        refuse(bounds.order_problem_of(order, self.run))
