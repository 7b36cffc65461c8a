"""A cluster that ``culm up`` started, named on the command line or meant: where its coordinator is, its certificate."""

import os
from collections.abc import Callable

from culm.engines.engine import find
from culm.local import clusters
from culm.local.ports import is_free
from culm.pipeline import default_ports
from culm.pipeline.errors import JobError
from culm.pipeline.rpc.tls import VARIABLE
from culm.terminal.client import connect


def only_one() -> str:
    """The cluster that is meant when no name is given; empty if none is up. Raises JobError if several are."""
    names = clusters.running_clusters()
    if len(names) > 1:
        raise JobError(f"several clusters are up: {', '.join(names)}", "NAME", "name one of them")
    return names[0] if names else ""


def coordinator_of(cluster: str, tell: Callable[[str], None]) -> str:
    """The coordinator of a command that names none by its address. Raises JobError. ``tell``: says a cluster's choice.

    Whoever names no cluster either means the usual address. Where no coordinator answers there, as a cluster's listens
    elsewhere if that port is taken, or on another machine, the only cluster that is up is meant.
    """
    if cluster:
        return enter(cluster)
    usual, names = default_ports.COORDINATOR, clusters.running_clusters()
    if not names or clusters.listening_at(usual) or _answers(usual):
        return usual
    if len(names) > 1:
        what = f"no coordinator answers at {usual}, and several clusters are up: {', '.join(names)}"
        raise JobError(what, "--cluster", "name one of them")
    tell(f"asking the cluster {names[0]}, the only one that is up (--cluster {names[0]} says so)")
    return enter(names[0])


def _answers(usual: str) -> bool:
    if is_free(default_ports.COORDINATOR_PORT):
        return False
    try:
        channel, _ = connect(usual)
    except JobError:
        return False
    channel.close()
    return True


def enter(name: str) -> str:
    """The address of the cluster's coordinator; this process shows the cluster's certificate from now on."""
    record = clusters.read(clusters.folder_of(name))
    if record is not None and record.lapsed:
        mend = "culm up starts it anew, with --resume from a checkpoint; culm logs says more"
        raise JobError(f"the cluster has ended: {record.lapsed}", f"--cluster {name}", mend)
    if record is None or not record.address or not record.is_up:
        up = ", ".join(clusters.running_clusters())
        mend = f"name one that is: {up}" if up else "none is up: culm up starts one"
        raise JobError("no cluster of that name is up", f"--cluster {name}", mend)
    if record.certificates:
        os.environ[VARIABLE] = record.certificates
    return find(record.engine).reach(clusters.folder_of(name), record)
