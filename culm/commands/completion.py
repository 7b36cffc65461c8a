"""``culm completion``: a script that lets the shell complete culm's commands and options."""

import argparse

SHELLS = ("bash", "zsh", "fish")
INSTALL = """examples:
  culm completion bash    > ~/.local/share/bash-completion/completions/culm
  culm completion zsh     > ~/.zfunc/_culm    with fpath+=~/.zfunc before compinit in ~/.zshrc
  culm completion fish    > ~/.config/fish/completions/culm.fish"""


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description="Prints a script that completes culm's commands and options; open a new shell after installing it.",
        epilog=INSTALL,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")
    parser.set_defaults(command=completion)


def completion(arguments: argparse.Namespace) -> int:
    print(script(arguments.shell))
    return 0


def script(shell: str) -> str:
    """The script for one of SHELLS, for every command that there is."""
    import shtab

    from culm.__main__ import all_parsers, make_parser

    parser = make_parser()
    for each in all_parsers(parser):
        for action in each._actions:
            if action.dest in ("job", "out", "trace"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    text: str = shtab.complete(parser, shell)
    return text
