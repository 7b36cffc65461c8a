"""Seeding: a node fetches the state of layers from another one."""

from culm.simulator.histories.arithmetic import Number
from culm.simulator.histories.world import Node, World
from culm.stage_server.worker.effects import FetchLayers


def seed_layers(world: World, node: Node, effect: FetchLayers) -> None:
    """Seeding: each layer is read from the source's live memory between two pieces of its work."""
    plan = node.worker.plan
    if plan is None or effect.peer not in plan.members:  # two plans were taken before the effects of the first
        return
    to = (node.name, node.incarnation)
    request, answer = world.channel(), world.channel()

    def failed() -> None:
        world.receive(to, lambda n: n.worker.fetch_failed(effect.era, effect.peer, effect.layers))

    def serve() -> None:
        if world.faults.cut_off(node.name, effect.peer):
            world.clock.after(2.0, failed)
            return
        source = world.nodes.get(effect.peer)
        if source is None or not source.alive:
            world.clock.after(0.05, failed)
            return
        if source.frozen:
            world.clock.after(3.0, failed)
            return
        if not set(effect.layers) <= set(source.arithmetic.states):
            world.clock.after(0.01, serve)  # still building them
            return
        for layer in effect.layers:
            version = source.worker.holdings.version_of(layer)
            if version is None or source.worker.era != effect.era or source.worker.must_arrange:
                world.clock.after(0.05, failed)
                return
            number = Number(source.arithmetic.states[layer])
            version = source.arithmetic.versions[layer]
            answer.send(
                lambda layer=layer, version=version, number=number: world.receive(  # type: ignore[misc]
                    to, lambda n: n.worker.fetched(effect.era, layer, version, number, effect.peer)
                )
            )

    request.send(serve)
