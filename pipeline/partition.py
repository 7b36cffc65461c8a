"""Cutting a model's layers into stages of about equal cost."""

from collections.abc import Sequence
from functools import lru_cache


def partition(
    costs: Sequence[float], stages: int, slowness: Sequence[float] | None = None
) -> tuple[tuple[int, int], ...]:
    """Contiguous ranges ``(first, end)``, one a stage, none empty, whose most expensive one is as cheap as can be.

    ``costs[i]`` is the cost of layer i, in any unit (measured seconds, or parameters); ``slowness[k]`` multiplies it
    for the node that runs stage k. Of several best cuts the one with the earliest boundaries is taken, so that every
    caller cuts alike. Raises ValueError if there are fewer layers than stages.
    """
    return _read(_last_cuts(costs, stages, slowness), stages)


@lru_cache(maxsize=16)  # a coordinator asks for one model's at every look at the shape
def partitions(costs: tuple[float, ...], most: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """What ``partition`` gives for 1, 2, .. ``most`` stages of equal nodes, for the work of the last one."""
    cut = _last_cuts(costs, most)
    return tuple(_read(cut, stages) for stages in range(1, most + 1))


def _last_cuts(costs: Sequence[float], stages: int, slowness: Sequence[float] | None = None) -> list[list[int]]:
    """``[k][i]``: where the last of k stages begins that the first i layers are best cut into."""
    n = len(costs)
    if stages < 1 or stages > n:
        raise ValueError(f"{n} layers cannot make {stages} stages: ask for 1 to {n}")
    prefix = [0.0]
    for cost in costs:
        prefix.append(prefix[-1] + cost)
    # Dynamic programming over the number of stages. best[k][i]: the lowest possible maximum when the first i layers
    # make k stages; cut[k][i]: where the last of these begins.
    infinity = float("inf")
    best = [[infinity] * (n + 1) for _ in range(stages + 1)]
    cut = [[0] * (n + 1) for _ in range(stages + 1)]
    best[0][0] = 0.0
    for k in range(1, stages + 1):
        factor = slowness[k - 1] if slowness is not None else 1.0
        for i in range(k, n + 1):
            # The last stage grows from its shortest range, and its cost with it: beyond the best cost no range helps.
            # ``<=`` while j falls: of equal cuts the one with the earliest boundary stays.
            for j in range(i - 1, k - 2, -1):
                last = factor * (prefix[i] - prefix[j])
                if last > best[k][i]:
                    break
                worst = max(best[k - 1][j], last)
                if worst <= best[k][i]:
                    best[k][i], cut[k][i] = worst, j
    return cut


def _read(cut: Sequence[Sequence[int]], stages: int) -> tuple[tuple[int, int], ...]:
    """The ranges of all layers in so many stages."""
    ranges: list[tuple[int, int]] = []
    end = len(cut[0]) - 1
    for k in range(stages, 0, -1):
        first = cut[k][end]
        ranges.append((first, end))
        end = first
    return tuple(reversed(ranges))
