"""Makes notice sources from a setting such as ``auto`` or ``aws,file:/run/preempt``."""

import logging
from pathlib import Path

from culm.stage_server.notices import file
from culm.stage_server.notices.clouds import CLOUDS, aws_is_off
from culm.stage_server.notices.metadata import TIMEOUT
from culm.stage_server.notices.notice import NoticeSource
from culm.stage_server.notices.polled import PolledSource

log = logging.getLogger("culm.notices")

FILE = "file:"


def make_sources(names: str, *, interval: float | None = None, timeout: float = TIMEOUT) -> list[NoticeSource]:
    """The sources that ``names`` lists, separated by commas: none, auto, aws, gcp, azure, file:PATH.

    ``auto`` means each cloud whose metadata service answers, in the first minute or two that it is waited on.
    ``interval`` replaces each source's own seconds between requests. Asks nobody yet. ValueError in one line for a
    name that is none of these, or an environment variable that is no endpoint.
    """
    wanted: dict[str, bool] = {}  # name -> whether it was asked for by that name
    for name in (part.strip() for part in names.split(",")):
        if name in CLOUDS or (name.startswith(FILE) and name != FILE):
            wanted[name] = True
        elif name == "auto":
            wanted = dict.fromkeys(CLOUDS, False) | wanted
        elif name != "none":
            known = f"none, auto, {', '.join(CLOUDS)} or {FILE}PATH"
            raise ValueError(f"notices {names!r}: no source is called {name!r}; name {known}, separated by commas")
    made = (_make(name, by_name, interval, timeout) for name, by_name in wanted.items())
    return [source for source in made if source is not None]


def _make(name: str, by_name: bool, interval: float | None, timeout: float) -> PolledSource | None:
    if name.startswith(FILE):
        path = Path(name.removeprefix(FILE))
        return PolledSource(name, file.NoticeFile(path).poll, file.INTERVAL if interval is None else interval)
    if name == "aws" and aws_is_off():
        if by_name:
            log.warning("aws: not watched for preemption notices: AWS_EC2_METADATA_DISABLED is true; unset it")
        return None
    cloud = CLOUDS[name]
    client = cloud.client(cloud.service(timeout))
    seconds = cloud.interval if interval is None else interval
    return PolledSource(name, client.poll, seconds, None if by_name else client.probe)
