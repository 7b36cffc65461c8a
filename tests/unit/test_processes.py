"""What Linux tells of a process's memory is read by name, in bytes."""

from benchmarks.data_parallel import Calm, calm_step
from benchmarks.processes import Memory, read_memory

STATUS = """Name:\tculm: n0
VmPeak:\t  999999 kB
VmHWM:\t     700 kB
VmRSS:\t     600 kB
RssAnon:\t     100 kB
RssFile:\t     200 kB
RssShmem:\t     300 kB
"""


def test_memory_is_read_by_name() -> None:
    assert read_memory(STATUS) == Memory(100 * 1024, 300 * 1024, 600 * 1024, 700 * 1024)


def test_a_step_takes_its_share_of_what_the_cpu_did_between_two_looks() -> None:
    # Half a second to a step; all processes take 0.8 s of the CPU in a second.
    commits = [0.5 * i for i in range(11)]
    looks = [(1.2, 10.0), (2.2, 10.8), (4.2, 12.4)]
    step = calm_step(commits, looks)
    assert [round(x, 6) for x in step] == list(Calm(0.5, 0.4))
