"""A cluster that ``culm up`` started, named on the command line: where its coordinator is, and its certificate."""

import os

from culm.engines.engine import find
from culm.local import clusters
from culm.pipeline.errors import JobError
from culm.pipeline.rpc.tls import VARIABLE


def only_one() -> str:
    """The cluster that is meant when no name is given; empty if none is up. Raises JobError if several are."""
    names = clusters.running_clusters()
    if len(names) > 1:
        raise JobError(f"several clusters are up: {', '.join(names)}", "NAME", "name one of them")
    return names[0] if names else ""


def enter(name: str) -> str:
    """The address of the cluster's coordinator; this process shows the cluster's certificate from now on."""
    record = clusters.read(clusters.folder_of(name))
    if record is not None and record.lapsed:
        mend = "culm up starts it anew, with --resume from a checkpoint; culm logs says more"
        raise JobError(f"the cluster has ended: {record.lapsed}", f"--cluster {name}", mend)
    if record is None or not record.address or not record.is_up:
        up = ", ".join(clusters.running_clusters()) or "none"
        raise JobError("no cluster of that name is up", f"--cluster {name}", f"name one that is: {up}")
    if record.certificates:
        os.environ[VARIABLE] = record.certificates
    return find(record.engine).reach(clusters.folder_of(name), record)
