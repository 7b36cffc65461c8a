"""Preemption notices are told once, from each cloud and from a file, and no metadata service can do harm."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from culm.pipeline.machine import Machine
from culm.stage_server.notices import Notice, NoticeSource, NoticeWatcher, find_machine, make_sources
from culm.stage_server.notices.aws import instance_action, rebalance_recommendation
from culm.stage_server.notices.azure import Azure, scheduled_events
from culm.stage_server.notices.gcp import Gcp, is_preempted
from culm.stage_server.notices.metadata import MetadataService
from culm.stage_server.notices.polled import NoAnswer, PolledSource
from tests.metadata_server import PATIENCE, MetadataServer, nobody

NOW = 1_000_000.0
AT = 1767323045.0  # 2026-01-02T03:04:05Z
EVICTION = "Fri, 02 Jan 2026 03:04:05 GMT"
TERMINATION = Notice("AWS will terminate this spot instance at 2026-01-02T03:04:05Z", AT, certain=True)
REBALANCE = Notice("AWS recommends a rebalance: this spot instance may be interrupted soon", None, certain=False)
VARIABLES = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "GCE_METADATA_HOST", "CULM_AZURE_METADATA_ENDPOINT")


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    server = MetadataServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def no_cloud_but_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where a test names no server, nobody listens; a proxy would be asked if any of this were to use one."""
    with nobody() as address:
        for variable in VARIABLES:
            monkeypatch.setenv(variable, f"http://{address}")
        monkeypatch.setenv("http_proxy", f"http://{address}")
        for variable in (
            "AWS_EC2_METADATA_DISABLED",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
            "AZURE_POD_IDENTITY_AUTHORITY_HOST",
            "no_proxy",
        ):
            monkeypatch.delenv(variable, raising=False)
        yield


@pytest.fixture
def cloud(server: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> MetadataServer:
    """A server that all environment variables name."""
    for variable in VARIABLES:
        monkeypatch.setenv(variable, server.host if variable == "GCE_METADATA_HOST" else server.url + "/")
    return server


@contextmanager
def watching(*sources: NoticeSource) -> Iterator[Callable[[], Notice]]:
    """Gives the next notice that a watcher of ``sources`` tells."""
    told: queue.SimpleQueue[Notice] = queue.SimpleQueue()
    watcher = NoticeWatcher(sources, told.put)
    watcher.start()
    try:
        yield lambda: told.get(timeout=PATIENCE)
    finally:
        watcher.close()
    assert told.empty()


def named(names: str) -> list[NoticeSource]:
    return make_sources(names, interval=0.01, timeout=PATIENCE)


def gcp_at_now(server: MetadataServer) -> PolledSource:
    return PolledSource("gcp", Gcp(MetadataService(server.url, PATIENCE), lambda: NOW).poll, 0.01)


def azure_at_now(server: MetadataServer) -> PolledSource:
    return PolledSource("azure", Azure(MetadataService(server.url, PATIENCE), lambda: NOW).poll, 0.01)


# ---- AWS ------------------------------------------------------------------------------------------------------------


def test_aws_recommends_a_rebalance_and_then_terminates(cloud: MetadataServer) -> None:
    with watching(*named("aws")) as notice:
        cloud.until_asked("instance-action", times=2)
        cloud.recommend_rebalance_aws()
        assert notice() == REBALANCE
        cloud.interrupt_aws()
        assert notice() == TERMINATION
        cloud.until_asked("rebalance", times=cloud.asked.count("GET /latest/meta-data/spot/instance-action") + 2)


def test_aws_is_asked_with_one_token_until_it_expires(cloud: MetadataServer) -> None:
    with watching(*named("aws")) as notice:
        cloud.until_asked("rebalance", times=3)
        assert cloud.asked.count("PUT /latest/api/token") == 1
        cloud.expire_tokens_aws()
        cloud.until_asked("PUT", times=2)
        cloud.interrupt_aws("stop")
        assert notice().why == "AWS will stop this spot instance at 2026-01-02T03:04:05Z"
    assert cloud.asked.count("PUT /latest/api/token") == 2


def test_an_instance_action_without_a_time_still_counts() -> None:
    assert instance_action(b'{"action": "hibernate"}') == Notice("AWS will hibernate this spot instance", None, True)
    assert instance_action(b'{"action": "stop", "time": "soon"}').deadline is None
    assert instance_action(b'{"action": "stop", "time": "2026-01-02T03:04:05"}').deadline == AT


@pytest.mark.parametrize("body", [b"", b"\xff", b"terminate", b"[]", b"{}", b'{"action": 3}', b"[" * 100_000])
def test_nonsense_from_aws_is_no_notice(body: bytes) -> None:
    with pytest.raises(NoAnswer):
        instance_action(body)
    with pytest.raises(NoAnswer):
        rebalance_recommendation(body)


# ---- GCP ------------------------------------------------------------------------------------------------------------


def test_gcp_tells_of_a_preemption_while_a_request_hangs(server: MetadataServer) -> None:
    with watching(gcp_at_now(server)) as notice:
        server.until_asked("wait_for_change=true&timeout_sec=60&last_etag=a1")
        server.preempt_gcp()
        assert notice() == Notice("GCP preempts this instance", NOW + 30.0, certain=True)
        server.until_asked("last_etag=b2")  # and does not tell it again
    assert len(server.asked) == 4, "once for how long before, and three times whether"


@pytest.mark.parametrize(
    ("said", "left"), [("120", 120.0), ("120\n", 120.0), ("0", 30.0), ("soon", 30.0), ("1e9", 30.0)]
)
def test_gcp_may_warn_earlier(said: str, left: float, server: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
    server.warn_earlier_gcp(said)
    server.preempt_gcp()
    with watching(gcp_at_now(server)) as notice:
        assert notice().deadline == NOW + left
    assert ("culm-notice-seconds" in caplog.text) == (said in ("soon", "1e9"))


def test_gcp_is_asked_again_how_early_it_warns_and_not_waited_for(server: MetadataServer) -> None:
    server.fail(403)
    with watching(gcp_at_now(server)) as notice:
        server.until_asked("culm-notice-seconds", times=2)
        server.warn_earlier_gcp("120")
        server.preempt_gcp()
        server.recover()
        # It may have been told of the preemption just before: then it learns only afterwards how early that was.
        assert any(notice().deadline == NOW + 120.0 for _ in range(2))


def test_the_end_that_gcp_has_announced_does_not_move_from_look_to_look(server: MetadataServer) -> None:
    server.preempt_gcp()
    clock = iter([NOW, NOW + 10.0, NOW + 20.0])
    gcp, stop = Gcp(MetadataService(server.url, PATIENCE), lambda: next(clock)), threading.Event()
    (first,) = gcp.poll(stop)
    gcp.probe(stop)
    (second,) = gcp.poll(stop)
    assert first == second == Notice("GCP preempts this instance", NOW + 30.0, certain=True)


def test_gcp_preempted_before_anyone_asked(server: MetadataServer) -> None:
    server.preempt_gcp()
    with watching(gcp_at_now(server)) as notice:
        assert notice().certain


def test_a_change_that_gcp_told_while_it_failed_is_not_missed(server: MetadataServer) -> None:
    with watching(gcp_at_now(server)) as notice:
        server.until_asked("last_etag=a1")
        server.fail(503)
        server.preempt_gcp()
        server.until_asked("preempted", times=4)
        server.recover()
        assert notice().why == "GCP preempts this instance"


def test_who_is_not_gcp_is_not_believed(server: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
    server.pose_as_another_than_gcp()
    server.preempt_gcp()
    with watching(gcp_at_now(server)):
        server.until_asked("preempted", times=3)
    assert "whoever answers is not GCP's metadata server" in caplog.text


@pytest.mark.parametrize("body", [b"", b"1", b"<html>", b"\xff"])
def test_nonsense_from_gcp_is_no_notice(body: bytes) -> None:
    with pytest.raises(NoAnswer):
        is_preempted(body)


# ---- Azure ----------------------------------------------------------------------------------------------------------


def test_azure_evicts_this_vm_and_not_only_its_neighbour(server: MetadataServer) -> None:
    server.schedule_azure("Preempt", "vm_1", event="E0", not_before=EVICTION)
    with watching(azure_at_now(server)) as notice:
        server.until_asked("scheduledevents", times=2)
        server.schedule_azure("Preempt", "vm_1", "VM_0", not_before=EVICTION)
        assert notice() == Notice("Azure will evict this spot VM (event E1)", AT, certain=True)
        server.schedule_azure("Freeze", "vm_0", event="E2")
        assert notice() == Notice("Azure will pause this VM for some seconds (event E2)", NOW, certain=False)


def test_azure_without_a_name_gives_hints(server: MetadataServer) -> None:
    server.hide_the_name_azure()
    server.schedule_azure("Preempt", "vm_0", not_before=EVICTION)
    with watching(azure_at_now(server)) as notice:
        assert notice() == Notice("Azure will evict this spot VM (event E1), or a VM beside it", AT, certain=False)


def test_azure_moves_an_eviction_and_then_begins_it(server: MetadataServer) -> None:
    later = "Fri, 02 Jan 2026 03:05:05 GMT"
    now = iter(range(1_000_000, 2_000_000, 10))
    azure = Azure(MetadataService(server.url, PATIENCE), lambda: float(next(now)))
    server.schedule_azure("Preempt", "vm_0", not_before=EVICTION)
    with watching(PolledSource("azure", azure.poll, 0.01)) as notice:
        assert notice().deadline == AT
        server.move_azure("E1", later)
        assert notice().deadline == AT + 60.0
        server.move_azure("E1", "")
        begun = notice().deadline
        assert begun is not None
        assert begun < AT
        server.until_asked("scheduledevents", times=server.asked.count("GET /metadata/scheduledevents") + 5)


@pytest.mark.parametrize("kind", ["Terminate", "Reboot", "Redeploy"])
def test_azure_events_that_end_the_process_are_certain(kind: str) -> None:
    body = f'{{"Events": [{{"EventId": "E1", "EventType": "{kind}", "Resources": ["vm_0"], "NotBefore": "soon"}}]}}'
    (notice,) = scheduled_events(body.encode(), "vm_0", NOW)
    assert (notice.certain, notice.deadline) == (True, None)


def test_azure_events_of_other_kinds_are_no_notices() -> None:
    assert scheduled_events(b'{"Events": []}', "vm_0", NOW) == []
    assert scheduled_events(b'{"Events": [3, {}, {"EventType": "Party", "Resources": ["vm_0"]}]}', "vm_0", NOW) == []


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"{}", b'{"Events": 3}'])
def test_nonsense_from_azure_is_no_notice(body: bytes) -> None:
    with pytest.raises(NoAnswer):
        scheduled_events(body, "vm_0", NOW)


# ---- a file ---------------------------------------------------------------------------------------------------------


def test_a_file_that_comes_into_existence_is_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "preempt"
    with watching(*named(f"file:{path}")) as notice:
        path.parent.mkdir()
        path.touch()
        assert notice() == Notice(f"the file {path} exists", None, certain=True)


def test_a_directory_of_that_name_exists_too(tmp_path: Path) -> None:
    with watching(*named(f"file:{tmp_path}")) as notice:
        assert notice().deadline is None


# ---- the setting ----------------------------------------------------------------------------------------------------


def test_the_setting_names_sources(tmp_path: Path) -> None:
    assert [len(make_sources(names)) for names in ("none", "auto", "aws, gcp,azure", f"auto,file:{tmp_path}")] == [
        0,
        3,
        3,
        4,
    ]
    assert len(make_sources("aws,auto,aws,none")) == 3


@pytest.mark.parametrize("names", ["", "aws,", "AWS", "ec2", "file:", "file", "aws gcp"])
def test_another_setting_is_refused_in_one_line(names: str) -> None:
    with pytest.raises(ValueError, match=r"^notices '.*': no source is called '.*'; name none, auto, aws, .*PATH, .*$"):
        make_sources(names)


@pytest.mark.parametrize("endpoint", ["https://127.0.0.1", "http://", "http://[::1", "127.0.0.1:99999", "file:///etc"])
def test_an_endpoint_of_another_form_is_refused(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", endpoint)
    with pytest.raises(ValueError, match=r"^GCE_METADATA_HOST: .*; set it to http://HOST:PORT .*$"):
        make_sources("gcp")


def test_auto_finds_the_cloud_that_is_there(cloud: MetadataServer) -> None:
    with watching(*named("auto")) as notice:
        cloud.interrupt_aws()
        assert notice() == TERMINATION
        cloud.preempt_gcp()
        assert notice().why == "GCP preempts this instance"
        cloud.schedule_azure("Preempt", "vm_0")
        assert notice().why == "Azure will evict this spot VM (event E1)"


def test_auto_drops_a_cloud_that_is_not_there_quietly(caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()
    assert [source.wait(stop) for source in make_sources("auto", interval=0.01, timeout=0.05)] == [None, None, None]
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("name", ["aws", "gcp", "azure"])
def test_auto_finds_a_cloud_that_does_not_answer_at_first(name: str, cloud: MetadataServer) -> None:
    (source,) = (source for source in named("auto") if source._name == name)  # type: ignore[attr-defined]
    cloud.fail(503)
    with watching(source) as notice:
        cloud.until_asked("", times=2)
        cloud.recover()
        cloud.interrupt_aws()
        cloud.preempt_gcp()
        cloud.schedule_azure("Preempt", "vm_0")
        assert notice().certain


def test_azure_is_found_where_its_own_tools_find_it(server: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CULM_AZURE_METADATA_ENDPOINT")
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", server.url)
    server.schedule_azure("Preempt", "vm_0")
    with watching(*named("azure")) as notice:
        assert notice().certain


def test_aws_is_left_alone_where_it_is_disabled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "True")
    assert len(make_sources("auto")) == 2
    assert caplog.text == ""
    assert make_sources("aws") == []
    assert "AWS_EC2_METADATA_DISABLED is true; unset it" in caplog.text


# ---- what a metadata service may do ---------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [(500, b""), (404, b""), (403, b"no"), (200, b""), (302, b"{}")])
@pytest.mark.parametrize("name", ["aws", "gcp", "azure"])
def test_a_service_that_fails_is_logged_once_and_asked_again(
    name: str, failure: tuple[int, bytes], cloud: MetadataServer, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.fail(*failure)
    with watching(*named(name)) as notice:
        cloud.until_asked("/", times=6)
        cloud.interrupt_aws()
        cloud.preempt_gcp()
        cloud.schedule_azure("Preempt", "vm_0")
        cloud.recover()
        # Azure's VM may have asked for its own name just before: then it learns of the event before it knows for whom.
        assert any(notice().certain for _ in range(2))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == len(set(warnings)) == 1
    assert warnings[0].startswith(f"{name}: cannot ask for preemption notices, still trying: ")


@pytest.mark.parametrize("name", ["aws", "gcp", "azure"])
def test_closing_ends_a_request_that_hangs(name: str, cloud: MetadataServer) -> None:
    cloud.hang()
    (source,) = named(name)
    stop, told = threading.Event(), queue.SimpleQueue[Notice | None]()
    threading.Thread(target=lambda: told.put(source.wait(stop)), daemon=True).start()
    cloud.until_asked("/")
    stop.set()
    assert told.get(timeout=PATIENCE / 2) is None  # the request itself would go on for twice as long


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("aws", Machine("aws", "p3.2xlarge", "us-east-1", "us-east-1b", "spot")),
        ("gcp", Machine("gcp", "c2-standard-8", "", "us-central1-f", "spot")),
        ("azure", Machine("azure", "Standard_NC6s_v3", "westeurope", "westeurope-2", "spot")),
    ],
)
def test_every_cloud_tells_what_machine_this_is(name: str, machine: Machine, cloud: MetadataServer) -> None:
    assert find_machine(name, timeout=PATIENCE) == machine


def test_nobody_is_asked_what_machine_this_is_unless_allowed(cloud: MetadataServer) -> None:
    assert find_machine("none") == Machine()
    assert cloud.asked == []


def test_a_machine_that_no_cloud_knows_stays_unknown() -> None:
    assert find_machine("auto", timeout=0.5) == Machine()


def test_what_the_user_says_counts_before_what_the_cloud_says() -> None:
    found = Machine("gcp", "c2-standard-8", "", "us-central1-f", "spot")
    assert Machine(market="on-demand").filled_in(found) == Machine(
        "gcp", "c2-standard-8", "us-central1", "us-central1-f", "on-demand"
    )
    assert Machine("mine", "box", "", "rack-b").filled_in(Machine()).region == ""
