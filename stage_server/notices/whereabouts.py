"""What kind of machine this is and where, from a cloud's metadata service."""

import logging
import threading
from collections.abc import Callable

from culm.pipeline.machine import Machine
from culm.stage_server.notices.aws import Aws
from culm.stage_server.notices.azure import Azure
from culm.stage_server.notices.gcp import Gcp
from culm.stage_server.notices.metadata import TIMEOUT, MetadataService
from culm.stage_server.notices.polled import NoAnswer
from culm.stage_server.notices.sources import CLOUDS, aws_is_off, service_of

log = logging.getLogger("culm.notices")

CLASSES: dict[str, Callable[[MetadataService], Aws | Gcp | Azure]] = {"aws": Aws, "gcp": Gcp, "azure": Azure}


def find_machine(names: str, timeout: float = TIMEOUT) -> Machine:
    """Asks the clouds that ``names`` allows (as for ``make_sources``), all at once; the first that answers counts.

    What nobody tells stays empty. Takes no longer than a few times ``timeout`` seconds and never fails.
    """
    asked = {part.strip() for part in names.split(",")}
    clouds = [name for name in CLOUDS if name in asked or "auto" in asked]
    if aws_is_off() and "aws" in clouds:
        clouds.remove("aws")
    found: dict[str, Machine] = {}

    def ask(name: str) -> None:
        try:
            found[name] = CLASSES[name](service_of(name, timeout)).machine(threading.Event())
        except NoAnswer as error:
            log.debug("%s: not here: %s", name, error)

    threads = [threading.Thread(target=ask, args=(name,), name=f"machine-{name}", daemon=True) for name in clouds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5 * timeout)
    answers = dict(found)
    return next((answers[name] for name in CLOUDS if name in answers), Machine())
