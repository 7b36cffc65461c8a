"""A node as the coordinator sees one: it speaks the raw protocol and computes nothing."""

from dataclasses import dataclass

import grpc

from culm.protos import coordinator_pb2 as pb

Call = grpc.aio.StreamStreamCall[pb.AttendRequest, pb.AttendResponse]


@dataclass
class FakeNode:
    """The node's end of an Attend stream."""

    name: str
    call: Call

    async def say(self, **body: object) -> None:
        await self.call.write(pb.AttendRequest(**body))  # type: ignore[arg-type]

    async def hear(self, body: str) -> pb.AttendResponse:
        """The next order, which must be of this kind."""
        order = await self.call.read()
        assert isinstance(order, pb.AttendResponse), f"{self.name}'s stream ended before {body}"
        assert order.WhichOneof("body") == body
        return order

    async def ready(self, stage: int, step: int = 0) -> None:
        # The loss of each of four microbatches, and the learning rate.
        tallies = [0.5, 0.1, 0.25, 0.1, 0.5, 0.1, 0.25, 0.1] if stage == 1 else []
        norms = [1.0] if stage == 0 else [1.0, 2.0, 3.0]  # four layers cost 4, 3, 2, 1: the first is a stage
        ready = pb.Ready(step=step, stage=stage, first_layer=stage, squared_norms=norms, tallies=tallies)
        await self.say(ready=ready)

    async def ended(self) -> bool:
        return await self.call.read() is grpc.aio.EOF
