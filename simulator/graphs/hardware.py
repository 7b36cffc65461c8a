"""The machines that graphs are trained on: what they do a second, and what that costs."""

from dataclasses import dataclass

from culm.pipeline.machine import Machine
from culm.pipeline.money.prices import load_prices

# Few assumptions stand for all machines. None is fitted to a published time.
#
# 1. A virtual CPU adds up 0.4e9 neighbours' values a second. A socket of the c5 generation has about 2.7 GB/s of memory
#    bandwidth for each virtual CPU; random rows get some 60 % of it; a value has four bytes. torch's sparse product
#    reached 0.08 to 0.18e9 on one core here, on random edges (2026-11-28).
# 2. A virtual CPU does 8e9 operations a second in products of tall, narrow matrices: torch reached 4 to 11e9 here.
# 3. A V100 does both at 60 % of its memory's bandwidth (900 GB/s) and at 4e12 operations a second, a quarter of what
#    its sheet says, for the same narrow matrices.
# 4. Networks do what is advertised ("up to"), in both directions at once. Values on a GPU pass PCIe twice, at 10 GB/s.
# 5. A Lambda of m MB has m / 1769 virtual CPUs (AWS's documentation), and 0.6 Gbit/s.

CPU_ADDS = 0.4e9
CPU_OPERATIONS = 8e9
GPU_ADDS = 0.6 * 900e9 / 4
GPU_OPERATIONS = 4e12
PCIE = 10e9  # bytes a second
GBIT = 1e9 / 8
MB_OF_A_CPU = 1769


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A graph server. Its cores do graph work and, without workers, tensor work."""

    name: str
    cores: int  # a GPU is one
    adds: float  # of neighbours' values, a second and core
    operations: float  # of tensor work, a second and core
    network: float  # bytes a second, each way
    copying: float  # bytes a second between its memory and the network; 0: no copy is needed
    dollars: float  # an hour

    def sending(self, size: float) -> float:
        """Seconds to bring as many bytes from its memory into another server's."""
        return size / self.network + (2 * size / self.copying if self.copying else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorWorker:
    """One that is called for a task, and billed for the time it runs."""

    gigabytes: float
    operations: float  # a second
    network: float  # bytes a second, each way
    latency: float  # seconds from the call until it runs; they are not billed
    per_gb_second: float  # dollars
    per_call: float  # dollars

    @property
    def dollars(self) -> float:
        """An hour, busy all the time."""
        return 3600 * self.gigabytes * self.per_gb_second


def on_demand(instance_type: str) -> float:
    """Dollars an hour, from the shipped table."""
    price = load_prices().on_demand(Machine("aws", instance_type, "us-east-1", "us-east-1a"))
    assert price is not None, f"pipeline/money/prices.toml has no {instance_type}"
    return price


def cpu_server(instance_type: str) -> Server:
    cores, gbit = {"c5.2xlarge": (8, 10), "c5n.2xlarge": (8, 25), "c5n.4xlarge": (16, 25)}[instance_type]
    return Server(
        name=instance_type,
        cores=cores,
        adds=CPU_ADDS,
        operations=CPU_OPERATIONS,
        network=gbit * GBIT,
        copying=0.0,
        dollars=on_demand(instance_type),
    )


def gpu_server() -> Server:
    """A p3.2xlarge: one V100."""
    return Server(
        name="p3.2xlarge",
        cores=1,
        adds=GPU_ADDS,
        operations=GPU_OPERATIONS,
        network=10 * GBIT,
        copying=PCIE,
        dollars=on_demand("p3.2xlarge"),
    )


def function(megabytes: int = 192, latency: float = 0.020) -> TensorWorker:
    """A function of AWS Lambda. The published system's have 192 MB."""
    price = load_prices().function("aws")
    assert price is not None, "pipeline/money/prices.toml has no function of aws"
    return TensorWorker(
        gigabytes=megabytes / 1024,
        operations=CPU_OPERATIONS * megabytes / MB_OF_A_CPU,
        network=0.6 * GBIT,
        latency=latency,
        per_gb_second=price.per_gb_second,
        per_call=price.per_million_calls / 1e6,
    )
