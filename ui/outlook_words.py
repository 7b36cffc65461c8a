"""What is to come of a run, in words: when it ends, what the rest costs, what the next machine would change. Pure."""

from datetime import UTC, datetime, tzinfo

from culm.protos import coordinator_pb2 as pb
from culm.ui.words import clock, moment, money, span

DAY = 86_400.0
SAME = 0.005  # share of a step: a smaller change is none
LATEST = datetime(9999, 12, 30, tzinfo=UTC).timestamp()  # the last moment with a date, in every zone


def seconds_in_words(forecast: pb.Forecast) -> str:
    """Such as ``1 h 19 min (1 h 10 min to 1 h 31 min)``; empty: not known."""
    if not forecast.HasField("seconds"):
        return ""
    each = forecast.seconds
    return f"{span(each.expected)} ({span(each.low)} to {span(each.high)})"


def dollars_in_words(forecast: pb.Forecast) -> str:
    """Such as ``$3.10 ($2.90 to $3.42)``; empty: not known."""
    if not forecast.HasField("dollars"):
        return ""
    each = forecast.dollars
    return f"{money(each.expected)} ({money(each.low)} to {money(each.high)})"


def end_in_words(forecast: pb.Forecast, at: float, zone: tzinfo | None = UTC) -> str:
    """Such as ``15:04:10 (14:55:02 to 15:16:31)``, with days where ``at`` is another day; empty: not known.

    Or beyond all dates: a job may ask for 10**12 steps, to train until somebody stops it.
    """
    if not forecast.HasField("ends_at") or forecast.ends_at.high > LATEST:
        return ""
    zone = zone or datetime.now().astimezone().tzinfo or UTC
    each = forecast.ends_at
    today = f"{datetime.fromtimestamp(at, zone):%Y-%m-%d}" == f"{datetime.fromtimestamp(each.high, zone):%Y-%m-%d}"
    told = clock if today else moment
    return f"{told(each.expected, zone)} ({told(each.low, zone)} to {told(each.high, zone)})"


def changes_of(cost: pb.GetCostResponse) -> list[tuple[pb.NodeChange, bool]]:
    """Those that are known, and whether each is of one node more."""
    found = [(cost.one_more, True)] if cost.HasField("one_more") else []
    return [*found, (cost.one_less, False)] if cost.HasField("one_less") else found


def whose(change: pb.NodeChange, more: bool) -> str:
    """Such as ``one more like n0``."""
    return f"one more like {change.node}" if more else f"without {change.node}"


def change_in_words(change: pb.NodeChange) -> str:
    """What a change comes to until the end, as far as that is known: such as ``12 min 0 s sooner, for $0.42 more``."""
    return f"{seconds_changed(change)}, {dollars_changed(change)}"


def seconds_changed(change: pb.NodeChange) -> str:
    if abs(change.step_ratio - 1.0) < SAME:
        return "ends at the same time"
    if change.HasField("seconds"):
        return f"ends {span(abs(change.seconds))} {'sooner' if change.seconds < 0 else 'later'}"
    return f"a step takes {100 * abs(change.step_ratio - 1.0):.0f} % {'less' if change.step_ratio < 1.0 else 'more'}"


def dollars_changed(change: pb.NodeChange) -> str:
    if not change.HasField("dollars"):
        return "at a price that is not known"
    return f"for {money(abs(change.dollars))} {'less' if change.dollars < 0 else 'more'}"
