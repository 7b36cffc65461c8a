"""A cloud's metadata service where machines look for it: ``python -m tests.machines.cloud aws``. SIGUSR1: a notice."""

import signal
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from tests.metadata_server import MetadataServer

ADDRESS = "169.254.169.254"
WORDS = {"aws": "latest", "gcp": "computeMetadata", "azure": "metadata"}
LEFT = timedelta(seconds=120)


def announce(server: MetadataServer, cloud: str) -> None:
    end = datetime.now(UTC) + LEFT
    match cloud:
        case "aws":
            server.interrupt_aws(time=f"{end:%Y-%m-%dT%H:%M:%SZ}")
        case "gcp":
            server.preempt_gcp()
        case "azure":
            server.schedule_azure("Preempt", "vm_0", not_before=format_datetime(end))


def main(cloud: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    server = MetadataServer((ADDRESS, 80), (WORDS[cloud],))
    server.warn_earlier_gcp(f"{LEFT.total_seconds():.0f}")  # as the page of VMs has such a machine made
    print("listening", flush=True)
    signal.sigwait({signal.SIGUSR1})
    announce(server, cloud)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
