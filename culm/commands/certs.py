"""``culm certs``: certificates for a cluster, signed by an authority that is made for it."""

import argparse
from pathlib import Path

from cryptography import x509

from culm.local.authority import INITIAL, issue, make_authority
from culm.pipeline.errors import JobError
from culm.pipeline.rpc.roles import FORM
from culm.pipeline.text import check_name
from culm.terminal import flags


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "certs",
        help="make certificates",
        description="Makes a certificate authority, and a folder of certificates for each role. Set CULM_TLS_DIR to "
        "one of them. docs/security.md says what each role may do.",
        epilog="example: culm certs init certs",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    init = actions.add_parser(
        "init", help="an authority, and a certificate for each role", epilog="example: culm certs init certs --days 30"
    )
    init.add_argument("folder", metavar="DIR", type=Path, help="where to put the authority and the roles' folders")
    init.set_defaults(command=_init)
    issue = actions.add_parser(
        "issue",
        help="one more certificate, or a newer one",
        epilog="examples:\n  culm certs issue certs --role viewer --name wall-screen\n"
        "  culm certs issue certs --role stage --node n0 --run nightly",
    )
    issue.add_argument("folder", metavar="DIR", type=Path, help="the authority's folder")
    issue.add_argument("--role", required=True, choices=INITIAL, help="what its holder may do")
    issue.add_argument("--name", help="its folder, and the name in it; default: the node, else the role")
    issue.add_argument("--node", default="", help="with --role stage: join as this node alone; default: as any")
    issue.set_defaults(command=_issue)
    for action in (init, issue):
        action.add_argument("--run", default="", help="use it in this run alone; default: in any")
        action.add_argument(
            "--days",
            type=flags.number(0.0, 36500.0, above=True),
            default=90.0,
            help="days for which a certificate is valid; default: 90",
        )


def _init(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.folder
    if (folder / "ca.crt").exists():
        mend = "use culm certs issue for more certificates, or another folder"
        raise JobError("the folder holds an authority already", str(folder), mend)
    make_authority(folder)
    for role in INITIAL:
        issue(folder, role, role, arguments.days, arguments.run)
    print(f"certificates for {', '.join(INITIAL)} are in {folder}; keep {folder / 'ca.key'} to yourself")
    return 0


def _issue(arguments: argparse.Namespace) -> int:
    if arguments.node and arguments.role != "stage":
        raise JobError(f"the role {arguments.role} joins as no node", "--node", "leave it out, or give --role stage")
    name = arguments.name or arguments.node or arguments.role
    _refuse_to_widen(arguments.folder / check_name(name, "--name"), arguments.role, arguments.run, arguments.node)
    print(issue(arguments.folder, arguments.role, name, arguments.days, arguments.run, arguments.node))
    return 0


def _refuse_to_widen(own: Path, role: str, run: str, node: str) -> None:
    """Raises JobError where a newer certificate would let its holder do more than the one that it replaces."""
    try:
        old = x509.load_pem_x509_certificate((own / "tls.crt").read_bytes())
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return  # there is none
    found = [FORM.fullmatch(uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)]
    for before in filter(None, found):
        for flag, then, now in (("--role", before[1], role), ("--run", before[3], run), ("--node", before[4], node)):
            if then and then != now:
                mend = f"give {flag} {then} again, or another --name for a certificate beside it"
                raise JobError(f"the certificate there counts for {flag[2:]} {then} alone", str(own), mend)
