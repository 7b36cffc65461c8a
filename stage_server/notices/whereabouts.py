"""What kind of machine this is and where, from a cloud's metadata service."""

import logging
import threading
from dataclasses import asdict, replace

from culm.pipeline.machine import Machine
from culm.pipeline.text import LONGEST_NAME, is_name
from culm.stage_server.notices.clouds import CLOUDS, aws_is_off
from culm.stage_server.notices.metadata import TIMEOUT
from culm.stage_server.notices.polled import NoAnswer

log = logging.getLogger("culm.notices")


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
            found[name] = CLOUDS[name].client(CLOUDS[name].service(timeout)).machine(threading.Event())
        except NoAnswer as error:
            log.debug("%s: not here: %s", name, error)

    threads = [threading.Thread(target=ask, args=(name,), name=f"machine-{name}", daemon=True) for name in clouds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5 * timeout)
    answers = dict(found)
    return _believable(next((answers[name] for name in CLOUDS if name in answers), Machine()))


def _believable(machine: Machine) -> Machine:
    """Without what is no word, or no zone's name: the coordinator would refuse the node for it, again and again."""
    words = asdict(machine)
    odd = {name: word for name, word in words.items() if not word.isprintable() or len(word) > LONGEST_NAME}
    if machine.zone and not is_name(machine.zone):
        odd["zone"] = machine.zone
    for name, word in odd.items():
        log.warning("the cloud's metadata service gives %.80r as this machine's %s, which is left out", word, name)
    return replace(machine, **dict.fromkeys(odd, ""))
