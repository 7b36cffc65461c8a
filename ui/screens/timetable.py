"""One step as a timetable: who did what when, beside the ideal."""

from collections.abc import Mapping

import streamlit as st

from culm.pipeline.counting import counted
from culm.pipeline.critical_path import COMMIT, TRAVEL, by_kind, critical_path
from culm.pipeline.errors import JobError
from culm.pipeline.ideal_step import ideal_of
from culm.pipeline.rpc.timetables import Gathered, gather
from culm.protos import coordinator_pb2 as pb
from culm.ui import markup
from culm.ui.counting import counting
from culm.ui.gantt import gantt, in_words, path_lines, shares
from culm.ui.screens.widgets import TEXT_SECONDS, panel, scheme, show_banner
from culm.ui.source import Source
from culm.ui.standing import is_over
from culm.ui.words import literal, milliseconds

EVERY = 10.0  # seconds between two looks at the newest step: a look asks every node
PATH_EXPLAINED = (
    "Each piece of work with the last thing that it needed. Travel: a tensor on its way. Taken: from there until it is "
    "used. Between: from one piece of work to the next. Ready: until a whole gradient is reported. Commit: from the "
    "last report to the commit. Applied: until its application begins."
)
NAMED = 6  # nodes without a row that a warning names
NOTHING = "The nodes of a live run tell their timetables. There is none in a recording, nor before training."


@st.cache_resource(ttl=EVERY - 1.0, max_entries=50, show_spinner=False)
def asked(name: str, step: int | None, _status: pb.GetStatusResponse) -> Gathered:
    """One answer for everybody who looks. ``name``: the source's; ``step``: None is the newest."""
    return gather(_status, step)


def show(source: Source) -> None:
    panel(show_banner, source, TEXT_SECONDS)
    if source.look().status.plan.members:
        st.number_input(
            counting(source.look()).step.capitalize(),
            min_value=0,
            value=None,
            placeholder="newest",
            key="timetable_step",
            width=200,
        )
    panel(picture, source, EVERY)


def picture(source: Source) -> None:
    look = source.look()
    if not look.status.plan.members:
        st.html(markup.note(NOTHING))
        return
    if look.problem and is_over(look):
        st.html(markup.note("The run is over and its coordinator has gone: nobody tells timetables any more."))
        return
    wanted = st.session_state.get("timetable_step")
    try:
        gathered = asked(source.name, wanted, look.status)
    except JobError as error:
        st.warning(literal(str(error)), icon=":material/search_off:")
        return
    helped = any(node.resources.tensor_workers.workers for node in look.status.nodes)
    shown(gathered, counting(look).step, helped)


def missing(silent: Mapping[str, str]) -> str:
    """In one line whose rows are missing, and why the first one is: the others mostly have the same reason."""
    names, first = list(silent), next(iter(silent.values()))
    if len(names) == 1:
        return f"A row is missing: {first}"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{len(names)} rows are missing, those of {', '.join(names[:NAMED])}{more}. The first one: {first}"


def shown(gathered: Gathered, step: str, helped: bool = False) -> None:
    """The last of the steps; ``step``: what one is called; ``helped``: tensor workers do a part of it.

    Workers tell no timetables. So the ideal knows nothing of their time, and says nothing of what a step might take.
    """
    timetable = gathered.timetables[-1]
    ideal, path = ideal_of(timetable), critical_path(timetable)
    legs = by_kind(path)
    travel, commit = legs.get(TRAVEL, (0.0, 0)), legs.get(COMMIT, (0.0, 0))
    best = ideal.seconds if ideal is not None else 0.0
    taken = f"{timetable.seconds / best:.2f} times the ideal" if best and not helped else ""
    busiest = f"the busiest node works {milliseconds(ideal.busiest_seconds * 1e3)}" if ideal is not None else ""
    busiest = "of the servers' own work: workers tell none" if helped else busiest
    figures = [
        (f"{step.capitalize()} {timetable.step}", milliseconds(timetable.seconds * 1e3), taken),
        ("Ideal", milliseconds(best * 1e3) if best else "–", busiest),
        (
            "Waited for tensors to travel",
            milliseconds(travel[0] * 1e3),
            f"{counted(travel[1], 'time')} on the critical path",
        ),
        ("Waited for the commit", milliseconds(commit[0] * 1e3), "from the last report"),
    ]
    st.html(markup.figures(figures))
    if gathered.silent:
        st.warning(literal(missing(gathered.silent)), icon=":material/visibility_off:")
    chart = gantt(timetable, ideal, scheme())
    st.vega_lite_chart(None, chart, width="stretch", key="timetable", alt=in_words(timetable, ideal))
    st.caption(
        "Bubble: a node waits for a tensor. Commit: its work is done, it waits for the commit. "
        f"The wheel zooms, dragging moves, a double click resets. Nodes have {step}s {gathered.kept.start} to "
        f"{gathered.kept.stop - 1}. `culm trace --step {timetable.step} --out FILE` writes the {step} for Perfetto."
    )
    st.html(markup.chart_title("where each node's time went", "in ms"))
    st.dataframe(shares(timetable, ideal), hide_index=True, width="stretch")
    st.html(markup.chart_title(f"what the {step} waited for", "the critical path, the longest first"))
    st.dataframe(path_lines(path), hide_index=True, width="stretch")
    st.html(markup.note(f"{PATH_EXPLAINED} docs/timetable.md has more."))
