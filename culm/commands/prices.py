"""``culm prices``: the prices that Culm knows, and the present ones of AWS."""

import argparse
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any

from culm.pipeline.errors import JobError
from culm.pipeline.money.prices import load_prices
from culm.pipeline.text import plain

PRODUCT = "Linux/UNIX"


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "prices",
        help="what machines cost",
        description="Shows the price table, or asks AWS for its present prices. See docs/cost.md.",
        epilog="example: culm prices ls",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    ls = actions.add_parser("ls", help="the price table", epilog="example: culm prices ls --prices prices.toml")
    ls.add_argument("--prices", default="", metavar="FILE", help="a table to search before the shipped one")
    ls.set_defaults(command=_ls)
    aws = actions.add_parser(
        "aws",
        help="AWS's present prices as a price table",
        epilog="example: culm prices aws --instance-type g5.xlarge --region us-east-1 > prices.toml",
    )
    aws.add_argument(
        "--instance-type", action="append", required=True, metavar="TYPE", help="a type of machine; may be repeated"
    )
    aws.add_argument("--region", required=True, help="such as us-east-1")
    aws.set_defaults(command=_aws)


def _ls(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("provider", "machine", "region", "zone", "spot $/h", "on demand", "date", "source", box=None)
    for row in load_prices(arguments.prices).rows():
        spot, on_demand = (f"{x:g}" if x is not None else "" for x in (row.spot, row.on_demand))
        where = (row.provider, row.instance_type, row.region, row.zone)
        table.add_row(*(Text(plain(x)) for x in (*where, spot, on_demand, row.date.isoformat(), row.source)))
    for column in table.columns[:-1]:
        column.no_wrap = True
    Console().print(table)
    return 0


def _aws(arguments: argparse.Namespace) -> int:
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise JobError("boto3 is not installed", "culm prices aws", "pip install 'culm[aws]'") from error
    region, types = arguments.region, arguments.instance_type
    try:
        ec2 = boto3.client("ec2", region_name=region)
        pages = ec2.get_paginator("describe_spot_price_history").paginate(
            InstanceTypes=types, ProductDescriptions=[PRODUCT], StartTime=datetime.now(UTC)
        )
        spot = [entry for page in pages for entry in page["SpotPriceHistory"]]
        # A few regions alone serve the price list, each for all regions.
        products = boto3.client("pricing", region_name="us-east-1")
        on_demand = {kind: on_demand_price(products, kind, region) for kind in types}
    except (BotoCoreError, ClientError) as error:
        mend = "check your AWS credentials, and the names"
        raise JobError(f"AWS gives no prices: {error}", f"{', '.join(types)} in {region}", mend) from error
    if not spot:
        raise JobError(
            "AWS sells no such spot machine there",
            f"{', '.join(types)} in {region}",
            "check the type and the region in AWS's console",
        )
    print(as_toml(spot, on_demand, region, datetime.now(UTC).date()), end="")
    return 0


def on_demand_price(products: Any, instance_type: str, region: str) -> float | None:
    """Dollars an hour, from AWS's price list; None where it lists none."""
    wanted = {
        "instanceType": instance_type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    for text in products.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]:
        for term in json.loads(text)["terms"].get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                if (price := float(dimension["pricePerUnit"].get("USD", 0))) > 0:
                    return price
    return None


def as_toml(spot: Iterable[Mapping[str, Any]], on_demand: Mapping[str, float | None], region: str, today: date) -> str:
    """A price table of the newest entry for each type and zone of a spot price history."""
    import tomli_w

    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for entry in spot:
        key = (entry["InstanceType"], entry["AvailabilityZone"])
        if key not in newest or newest[key]["Timestamp"] < entry["Timestamp"]:
            newest[key] = entry
    rows: list[dict[str, Any]] = []
    for (instance_type, zone), entry in sorted(newest.items()):
        where = {"provider": "aws", "instance_type": instance_type, "region": region, "zone": zone}
        price = on_demand.get(instance_type)
        money = {"spot": float(entry["SpotPrice"])} | ({"on_demand": price} if price is not None else {})
        rows.append({**where, **money, "date": today, "source": "AWS spot price history and price list"})
    return tomli_w.dumps({"machine": rows})
