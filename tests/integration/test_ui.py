"""The dashboard's pages on a live cluster: its button takes a node, and a coordinator may go and come back."""

import os
import signal
from pathlib import Path

from streamlit.testing.v1 import AppTest

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.ui.source import Live
from culm.ui.standing import standing

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = """
from culm.ui.screens import topology
from culm.ui.screens.widgets import tell_what_was_said
from culm.ui.source import Live
tell_what_was_said()
topology.show(Live({address!r}))
"""


def test_the_button_preempts_a_node_and_the_pages_outlive_a_coordinator(tmp_path: Path) -> None:
    job = load_job(EXAMPLES / "digits_mlp.toml", ["job.steps=80", "pipeline.stages=2"])
    said: list[str] = []

    def disturb(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if status.step >= 15 and not said:
            stub.Pause(pb.PauseRequest(who="a test"))  # the run would be over before the page is drawn
            app = AppTest.from_string(SCRIPT.format(address=cluster.address), default_timeout=60.0).run()
            assert not app.selectbox, "nothing happens without a confirmation"
            app.button(key="preempt").click().run()
            app.button(key="preempt").click()  # this keeps the dialog open: no browser does
            app.selectbox(key="victim").set_value("n1")
            app.button(key="preempt_now").click().run()
            assert not app.exception
            said.append(app.toast[0].value)
            stub.Resume(pb.ResumeRequest(who="a test"))
        elif status.step >= 50 and len(said) == 1:
            live.look()
            os.kill(cluster.pids()["coordinator"], signal.SIGKILL)
            while not (look := live.look()).problem:
                pass
            said.append(look.problem)

    with LocalCluster(job, EXAMPLES, 3, folder=tmp_path / "run") as cluster:
        live = Live(cluster.address)
        outcome = train(cluster, lambda status, new, outcome: None, disturb)
        while (look := live.look()).problem:
            pass
    assert said[0].startswith("n1 (process ")
    assert "does not answer" in said[1]
    assert [(i.kind, i.node) for i in look.history.incidents] == [("lost", "n1"), ("coordinator", "")]
    assert list(look.history.steps) == list(range(80)), "every commit is seen once, through the change of coordinators"
    assert standing(look).word == "finished"
    assert outcome.sha256 == run_plain(job).sha256
