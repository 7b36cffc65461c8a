"""State on its way to new holders: what a plan asks for, and when it is there."""

from collections.abc import Mapping
from typing import NamedTuple

from pipeline.plan import Plan
from simulator.profile import STATE_BYTES, Cluster, Profile


class Way(NamedTuple):
    """State that is moving."""

    arrives: float  # when
    size: int  # bytes


class Part(NamedTuple):
    """Layers that a node is being seeded with, up to ``end_layer`` (exclusive)."""

    node: str
    first_layer: int
    end_layer: int


def asked(plan: Plan) -> list[tuple[str, Part]]:
    """Who is to give what to whom under a plan: standbys that are not hot, and holders of stages to be."""
    parts = [
        (stage.owner, Part(b.node, stage.first_layer, stage.end_layer))
        for stage in plan.stages
        for b in stage.standbys
        if not b.hot
    ]
    for stage in plan.target:
        giver = next(s.owner for s in plan.stages if stage.first_layer in s.layers)
        parts += [(giver, Part(node, stage.first_layer, stage.end_layer)) for node in stage.holders()]
    return list({part: (giver, part) for giver, part in parts}.values())


def arrivals(
    plan: Plan,
    held: Mapping[str, set[int]],
    under_way: Mapping[Part, Way],
    profile: Profile,
    cluster: Cluster,
    now: float,
) -> dict[Part, Way]:
    """When each part is there. A holder gives so much a second, and one after another to those that it seeds."""
    given: dict[str, int] = {}
    found: dict[Part, Way] = {}
    for giver, part in asked(plan):
        if part in under_way:
            found[part] = under_way[part]
        elif part.node in held:
            lacking = [x for x in range(part.first_layer, part.end_layer) if x not in held[part.node]]
            size = STATE_BYTES * sum(profile.layers[x].parameters for x in lacking)
            given[giver] = given.get(giver, 0) + size
            found[part] = Way(now + given[giver] / cluster.seed_bytes_per_second, size)
    return found
