"""Makes notice sources from a setting such as ``auto`` or ``aws,file:/run/preempt``."""

import logging
import os
from pathlib import Path

from culm.stage_server.notices import aws, azure, file, gcp
from culm.stage_server.notices.metadata import TIMEOUT, MetadataService
from culm.stage_server.notices.notice import NoticeSource
from culm.stage_server.notices.polled import PolledSource

log = logging.getLogger("culm.notices")

LINK_LOCAL = "http://169.254.169.254"  # where all three clouds answer; no name to look up where there is no cloud
LINK_LOCAL_6 = "http://[fd00:ec2::254]"  # AWS only
CLOUDS = ("aws", "gcp", "azure")
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
    service = service_of(name, timeout)
    cloud: aws.Aws | gcp.Gcp | azure.Azure
    match name:
        case "aws":
            cloud, usual = aws.Aws(service), aws.INTERVAL
        case "gcp":
            cloud, usual = gcp.Gcp(service), gcp.INTERVAL
        case "azure":
            cloud, usual = azure.Azure(service), azure.INTERVAL
        case _:
            raise ValueError(f"no source of notices is called {name!r}")
    return PolledSource(name, cloud.poll, usual if interval is None else interval, None if by_name else cloud.probe)


def aws_is_off() -> bool:
    """Whether the user has said, as AWS's own tools have it, that its metadata service is not to be asked."""
    return os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"


def service_of(cloud: str, timeout: float) -> MetadataService:
    """The cloud's metadata service, where its environment variables say it is. ValueError if that is no endpoint."""
    if cloud == "aws":
        six = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "").lower() == "ipv6"
        return _service(("AWS_EC2_METADATA_SERVICE_ENDPOINT",), LINK_LOCAL_6 if six else LINK_LOCAL, timeout)
    if cloud == "gcp":
        return _service(("GCE_METADATA_HOST",), LINK_LOCAL, timeout)
    # Azure's SDKs move the metadata service with the second one, which was made for one of its uses only.
    return _service(("CULM_AZURE_METADATA_ENDPOINT", "AZURE_POD_IDENTITY_AUTHORITY_HOST"), LINK_LOCAL, timeout)


def _service(variables: tuple[str, ...], default: str, timeout: float) -> MetadataService:
    """At the endpoint that the first of the environment variables gives which is set."""
    for variable in variables:
        if given := os.environ.get(variable, "").strip():
            try:
                # GCE_METADATA_HOST is HOST[:PORT]; both forms are taken everywhere.
                return MetadataService(given if "://" in given else f"http://{given}", timeout)
            except ValueError as error:
                mend = "set it to http://HOST:PORT of a metadata service, or unset it"
                raise ValueError(f"{variable}: {error}; {mend}") from None
    return MetadataService(default, timeout)
