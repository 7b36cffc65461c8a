"""The clouds whose metadata services are known: one table, an entry each."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from culm.stage_server.notices import aws, azure, gcp
from culm.stage_server.notices.metadata import MetadataService

Client = aws.Aws | gcp.Gcp | azure.Azure  # each can probe, poll for notices, and tell the machine

LINK_LOCAL = "http://169.254.169.254"  # where each answers; there is no name to look up where there is no cloud
LINK_LOCAL_6 = "http://[fd00:ec2::254]"  # AWS only


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """How to ask its metadata service."""

    client: Callable[[MetadataService], Client]
    interval: float  # seconds between two requests for notices
    variables: tuple[str, ...]  # of the environment, that say where the service is; the first that is set counts
    default: Callable[[], str]  # where it is else

    def service(self, timeout: float) -> MetadataService:
        """ValueError in one line if its environment variable is no endpoint."""
        for variable in self.variables:
            if given := os.environ.get(variable, "").strip():
                try:
                    # GCE_METADATA_HOST is HOST[:PORT]; both forms are taken everywhere.
                    return MetadataService(given if "://" in given else f"http://{given}", timeout)
                except ValueError as error:
                    mend = "set it to http://HOST:PORT of a metadata service, or unset it"
                    raise ValueError(f"{variable}: {error}; {mend}") from None
        return MetadataService(self.default(), timeout)


def _of_aws() -> str:
    six = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "").lower() == "ipv6"
    return LINK_LOCAL_6 if six else LINK_LOCAL


def _usual() -> str:
    return LINK_LOCAL


CLOUDS = {
    "aws": Cloud(
        client=aws.Aws,
        interval=aws.INTERVAL,
        variables=("AWS_EC2_METADATA_SERVICE_ENDPOINT",),
        default=_of_aws,
    ),
    "gcp": Cloud(client=gcp.Gcp, interval=gcp.INTERVAL, variables=("GCE_METADATA_HOST",), default=_usual),
    "azure": Cloud(
        client=azure.Azure,
        interval=azure.INTERVAL,
        # Azure's SDKs move the metadata service with the second one, which was made for one of its uses only.
        variables=("CULM_AZURE_METADATA_ENDPOINT", "AZURE_POD_IDENTITY_AUTHORITY_HOST"),
        default=_usual,
    ),
}


def aws_is_off() -> bool:
    """Whether the user has said, as AWS's own tools have it, that its metadata service is not to be asked."""
    return os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
