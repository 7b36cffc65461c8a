"""What machines and traffic cost: a table from TOML files, the user's before the one that is shipped."""

import tomllib
from collections.abc import Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from culm.pipeline.errors import JobError
from culm.pipeline.machine import Machine

# The user's file comes first, the shipped one second. In the first file that has any row for a machine, the row with
# the most keys counts: what is said of a type in one zone goes before what is said of the type. A row without a price
# on the asked market is no match, so a table of spot prices alone leaves on-demand prices to the next file. ``fixed``
# and ``restart`` are of the first file that has them. A node whose price no file knows costs nothing, and is named.

SHIPPED = Path(__file__).with_name("prices.toml")
Dollars = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
KEYS = ("provider", "instance_type", "region", "zone")


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MachinePrice(_Row):
    """Dollars an hour. Keys that are left out match any machine."""

    provider: str = ""
    instance_type: str = ""
    region: str = ""
    zone: str = ""
    spot: Dollars | None = None
    on_demand: Dollars | None = None
    date: date
    source: str

    def matches(self, machine: Machine) -> bool:
        return all(getattr(self, key).lower() in ("", getattr(machine, key).lower()) for key in KEYS)

    @property
    def keys(self) -> int:
        """How specific the row is."""
        return sum(bool(getattr(self, key)) for key in KEYS)

    def of(self, market: str) -> float | None:
        """The price on that market; one that is not known counts as on-demand."""
        return self.spot if market == "spot" else self.on_demand


class TransferPrice(_Row):
    """Dollars for a gigabyte (1e9 bytes) between two machines of the provider, both ends' charges together."""

    provider: str
    between: Literal["zones", "regions"]
    per_gb: Dollars
    date: date
    source: str


class FunctionPrice(_Row):
    """What a function service bills: dollars for a gigabyte of memory (2**30 bytes) and a second, and for calls."""

    provider: str
    per_gb_second: Dollars
    per_million_calls: Dollars = 0.0
    date: date
    source: str


class Restart(_Row):
    """What training with checkpoints and restarts is taken to need, for comparison. Seconds."""

    seconds: Dollars = 133.0
    checkpoint_every: Annotated[float, Field(gt=0, le=1e9)] = 600.0


class _File(_Row):
    machine: tuple[MachinePrice, ...] = ()
    transfer: tuple[TransferPrice, ...] = ()
    function: tuple[FunctionPrice, ...] = ()
    fixed: dict[str, Dollars] = {}
    restart: Restart | None = None


class PriceTable:
    """Looks prices up in several files; in the first that knows, the row with the most keys."""

    def __init__(self, files: Sequence[_File]) -> None:
        self._files = files

    def machine(self, machine: Machine) -> MachinePrice | None:
        """The row for a machine, or None. Nothing matches a machine of which neither type nor provider is known."""
        if not machine.provider and not machine.instance_type:
            return None
        for file in self._files:
            rows = [row for row in file.machine if row.matches(machine) and row.of(machine.market) is not None]
            if rows:
                return max(rows, key=lambda row: row.keys)
        return None

    def spot_rows(self, instance_type: str) -> list[MachinePrice]:
        """Those of the type, wherever it is, that have a spot price: of the first file that has any."""
        kind = instance_type.lower()
        each = ([x for x in f.machine if x.instance_type.lower() == kind and x.spot is not None] for f in self._files)
        return next(filter(None, each), [])

    def rows(self) -> list[MachinePrice]:
        """All of them, the user's first."""
        return [row for file in self._files for row in file.machine]

    def on_demand(self, machine: Machine) -> float | None:
        """Dollars an hour for the same machine on demand, or None."""
        for file in self._files:
            rows = [row for row in file.machine if row.matches(machine) and row.on_demand is not None]
            if rows:
                return max(rows, key=lambda row: row.keys).on_demand
        return None

    def per_gb(self, provider: str, between: str) -> float:
        """Dollars for a gigabyte between zones or between regions; 0 where nothing is known."""
        rows = (row for file in self._files for row in file.transfer)
        return next((r.per_gb for r in rows if r.provider.lower() == provider.lower() and r.between == between), 0.0)

    def function(self, provider: str) -> FunctionPrice | None:
        """The row of the provider's function service, or None."""
        rows = (row for file in self._files for row in file.function)
        return next((row for row in rows if row.provider.lower() == provider.lower()), None)

    @property
    def fixed_per_hour(self) -> float:
        """Dollars an hour for what runs beside the nodes: the coordinator's machine, disks."""
        return next((sum(file.fixed.values()) for file in self._files if file.fixed), 0.0)

    @property
    def restart(self) -> Restart:
        return next((file.restart for file in self._files if file.restart is not None), Restart())


def load_prices(path: str = "") -> PriceTable:
    """The user's file, if one is named, and then the shipped one. Raises JobError in one line for a bad file."""
    return PriceTable([_read(Path(path)), _shipped()] if path else [_shipped()])


@cache
def _shipped() -> _File:
    return _read(SHIPPED)


def _read(path: Path) -> _File:
    try:
        return _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        what, mend = f"the price table cannot be read ({reason})", "give the path of a TOML file"
        raise JobError(what, str(path), mend) from error
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"this is no TOML: {error}", str(path), "correct the syntax there") from error
    except RecursionError as error:
        raise JobError("this is no TOML: it is nested too deeply", str(path), "correct the syntax there") from error
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        mend = "see docs/cost.md for what a price table holds"
        raise JobError(first["msg"][0].lower() + first["msg"][1:], f"{path}, {at}", mend) from error
    except ValueError as error:  # of Python itself: it reads no number of more than 4300 digits
        raise JobError("this is no TOML: a number is too long", str(path), "correct the syntax there") from error
