"""In which order nodes run their pipelines, so that none waits for another one's turn. Pure."""

# A stage keeps few graphs (``choice``), so a node that sends to a busy one soon stands still with its room full, and
# whoever else waits for it stands still as well. Two pipelines, p2 and p3, go from n1 to n4 and to n5, and n4 has two
# pipelines of n0 as well. By number n4 runs p0, p1 and then p2:
#
#     n1   p2 p2 . . . . . . . . . . . . . . . p2 p2 p3 p3 p3 p3      by turns   n1   p3 p3 p3 p3 p2 p2 p2 p2
#     n4   p0 p0 p0 p0 p1 p1 p1 p1 p2 p2 p2 p2                                   n4   p0 .. p0 p1 .. p1 p2 .. p2
#     n5   . . . . . . . . . . . . . . . . . . . . . p3 p3 p3 p3                 n5   p3 p3 p3 p3
#
# So pipelines that have a node in common get different turns where that is possible, and nodes run them in order of
# turn: a colouring of the graph of pipelines. ``DSATUR`` (Brelaz, 1979) gives it: next comes the pipeline whose
# neighbours have the most different turns, and it gets the lowest that is free. Where rows of nodes run pipelines of
# their own, these go by number. After one of four replicas of two stages was lost, D = 8 and M = 4, a step took 51
# parts of time in most cases, and takes 39 in all.
#
# A turn is no promise: a node runs what has its input, in whatever order duties came to it.

from collections.abc import Sequence


def turns_of(owners: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """By pipeline, when it is run: 0 first. ``owners``: of each stage, by pipeline."""
    pipelines = range(len(owners[0]) if owners else 0)
    run_by: dict[str, list[int]] = {}
    for stage in owners:
        for pipeline, node in enumerate(stage):
            run_by.setdefault(node, []).append(pipeline)
    beside = [{q for stage in owners for q in run_by[stage[p]]} - {p} for p in pipelines]
    taken: list[set[int]] = [set() for _ in pipelines]  # turns of those beside it
    turns: dict[int, int] = {}
    while len(turns) < len(pipelines):
        left = (p for p in pipelines if p not in turns)
        chosen = max(left, key=lambda p: (len(taken[p]), len(beside[p]), -p))
        turns[chosen] = next(turn for turn in range(len(pipelines)) if turn not in taken[chosen])
        for p in beside[chosen]:
            taken[p].add(turns[chosen])
    return tuple(turns[p] for p in pipelines)
