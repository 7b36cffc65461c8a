"""``culm ui``: the dashboard in a browser."""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

import culm
from culm.local.ports import is_free
from culm.pipeline.default_ports import UI_PORT
from culm.pipeline.errors import JobError
from culm.pipeline.rpc.tls import LOOPBACK
from culm.terminal import flags
from culm.ui.palette import theme_settings


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "ui",
        help="the dashboard in a browser",
        description="Serves the dashboard of a run: money, topology, preemptions. It talks to the coordinator, and to "
        "the nodes when somebody looks at a step's timetable.",
        epilog="examples:\n"
        "  culm ui --coordinator 127.0.0.1:7070\n"
        "  culm ui --demo\n"
        "  culm ui --log run.jsonl --speed 10\n"
        "  culm ui --runs logs",
    )
    flags.add_coordinator(parser)
    listen = flags.from_environment("CULM_LISTEN", f"127.0.0.1:{UI_PORT}")
    where = f"where the dashboard listens; default: CULM_LISTEN, else 127.0.0.1:{UI_PORT}"
    parser.add_argument("--listen", type=flags.address, default=listen, metavar="HOST:PORT", help=where)
    parser.add_argument("--demo", action="store_true", help="show the recorded run that comes with Culm")
    parser.add_argument(
        "--log", default="", metavar="FILE", help="show the run recorded in this file by culm events --json"
    )
    parser.add_argument(
        "--runs",
        default="",
        metavar="FOLDER",
        help="compare the ended runs recorded in this folder, a file each, and keep this run's log there",
    )
    speed = flags.number(above=True, most=1e6)
    parser.add_argument(
        "--speed", type=speed, default=1.0, help="how many times as fast to play a recorded run; default: 1"
    )
    insecure = "listen where other machines reach it, without a password; also CULM_INSECURE=1"
    flags.add_switch(parser, "--insecure", "CULM_INSECURE", insecure)
    parser.set_defaults(command=ui)


def installed() -> bool:
    return importlib.util.find_spec("streamlit") is not None


def ui(arguments: argparse.Namespace) -> int:
    if not installed():
        raise JobError("streamlit is not installed", "culm ui", "pip install 'culm[ui]'")
    host, _, port = arguments.listen.rpartition(":")
    if not arguments.insecure and not arguments.listen.startswith(LOOPBACK):
        what = "everybody who reaches this address could watch the run, and preempt nodes if this certificate may"
        mend = "listen on 127.0.0.1 behind a proxy that asks for a password, or allow it with --insecure"
        raise JobError(what, f"--listen {arguments.listen}", mend)
    if arguments.log and not Path(arguments.log).is_file():
        raise JobError("there is no such file", arguments.log, "make one: culm events --json > FILE")
    if arguments.runs and not Path(arguments.runs).is_dir():
        raise JobError("there is no such folder", arguments.runs, "make it, and keep logs there: culm events --json")
    if not is_free(int(port)):
        raise JobError("the port is in use", f"--listen {arguments.listen}", "choose another with --listen")
    os.environ["CULM_COORDINATOR"] = arguments.coordinator
    os.environ["CULM_UI_LOG"] = arguments.log or ("demo" if arguments.demo else "")
    os.environ["CULM_UI_RUNS"] = arguments.runs
    os.environ["CULM_UI_SPEED"] = str(arguments.speed)
    package = Path(culm.__file__).resolve().parent
    app = package / "ui" / "app.py"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package.parent), os.environ.get("PYTHONPATH"))))
    settings = {
        "server.address": host.strip("[]"),
        "server.port": port,
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",  # no request leaves the machine
        "logger.hideWelcomeMessage": "true",  # it would ask another site for this machine's address
        "client.toolbarMode": "minimal",
        "runner.postScriptGC": "false",  # collects garbage after every drawing of every page: half of all time
        "client.showErrorDetails": "none",  # a page says what is wrong in a line; the log has the rest
        **theme_settings(),
    }
    words = [f"--{name}={value}" for name, value in settings.items()]
    print(f"culm ui: http://{arguments.listen}", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "streamlit", "run", str(app), *words])
