"""Command lines that no command can use: one line that says what, where, and the mend; and nothing begins.

Each is refused in this process, where a new one would add nothing but the seconds that it takes to start.
"""

import shlex
from pathlib import Path

import pytest
import tomli_w

from culm.__main__ import MODULES, all_parsers, make_parser
from culm.pipeline.default_ports import COORDINATOR
from tests.hostile.commands import ROOT, in_process
from tests.hostile.test_bad_jobs import job_with

NOWHERE = "127.0.0.1:9"  # where nobody listens
REPLACED = {"JOB": "job.toml", "TRACE": "trace.csv"}

Case = tuple[str, str]  # the command line, and what the line says of it

GENERAL: dict[str, Case] = {
    "no command": ("", "COMMAND"),
    "an unknown command": ("rum JOB", "did you mean run?"),
    "an empty command": ("'' JOB", "known here"),
    "a command in capitals": ("RUN JOB", "did you mean run?"),
    "an unknown flag first": ("--jsno status", "not known here"),
    "an unknown flag": ("run JOB --spare-nodes 3", "not known here"),
    "a misspelt flag": ("run JOB --noeds 3", "did you mean --nodes?"),
    "too many words": ("run JOB JOB", "not known here"),
    "a flag without its value": ("run JOB --nodes", "expected one argument"),
    "an unknown action": ("checkpoint list file:///tmp", "did you mean ls?"),
    "no action": ("checkpoint", "ACTION"),
    "an unknown shell": ("completion bsh", "did you mean bash?"),
    "words for doctor": ("doctor everything", "not known here"),
    "words for demo": ("demo --fast", "not known here"),
}

RUN: dict[str, Case] = {
    "no job": ("run", "JOB.toml"),
    "a job that is not there": ("run nowhere.toml", "No such file"),
    "a job that is a folder": ("run .", "Is a directory"),
    "a job of bytes": ("run binary", "not UTF-8"),
    "a job of an empty name": ("run ''", "cannot be read at /"),
    "nodes -1": ("run JOB --nodes -1", "--nodes"),
    "nodes 0": ("run JOB --nodes 0", "--nodes"),
    "nodes 10**6": ("run JOB --nodes 1000000", "--nodes"),
    "nodes a float": ("run JOB --nodes 2.5", "--nodes"),
    "nodes text": ("run JOB --nodes two", "--nodes"),
    "nodes of other digits": ("run JOB --nodes ٣", "--nodes"),
    "nodes with an underscore": ("run JOB --nodes 1_0", "--nodes"),
    "nodes empty": ("run JOB --nodes ''", "--nodes"),
    "spares -1": ("run JOB --spares -1", "--spares"),
    "spares 10**30": ("run JOB --spares 1000000000000000000000000000000", "--spares"),
    "nodes and spares": ("run JOB --nodes 200 --spares 200", "--nodes and --spares"),
    "set without a value": ("run JOB --set job.steps", "--set"),
    "set without a section": ("run JOB --set steps=3", "--set"),
    "set of an unknown section": ("run JOB --set jab.steps=3", "did you mean job?"),
    "set of an unknown key": ("run JOB --set job.step=3", "did you mean steps?"),
    "set under a number": ("run JOB --set job.steps.more=3", "--set"),
    "set of deep nesting": (f"run JOB --set job.steps={'[' * 3000}", "job.steps"),
    "set of nothing": ("run JOB --set ''", "--set"),
    "an address without a port": ("run JOB --coordinator-address localhost", "HOST:PORT"),
    "an address of port 65536": ("run JOB --coordinator-address 127.0.0.1:65536", "65535"),
    "an address of port -1": ("run JOB --coordinator-address 127.0.0.1:-1", "HOST:PORT"),
    "an address of a name": ("run JOB --coordinator-address 127.0.0.1:http", "HOST:PORT"),
    "an address with spaces": ("run JOB --coordinator-address '127.0.0.1 :70'", "HOST:PORT"),
    "out in a folder that is not there": ("run JOB --out nowhere/w.safetensors", "make the folder first"),
    "out that is a folder": ("run JOB --out .", "--out"),
    "out empty": ("run JOB --out ''", "--out"),
    "out below a file": ("run JOB --out job.toml/w", "make the folder first"),
    "parts that no run has": ("run JOB --resume file:///x --allow machines", "machines"),
    "a value for a new run": ("run JOB --new-run=yes", "--new-run"),
    "a value for a new run of up": ("up JOB --new-run=yes", "--new-run"),
    "resume with a password": ("run JOB --resume https://me:pw@host/x", "https://me:***@host/x"),
    "a kill of no node": ("run JOB --kill n9@1", "name one of n0 to n1"),
    "a kill beyond the end": ("run JOB --kill n1@3", "name one of 0 to 2"),
    "a kill of a stage that is not there": ("run JOB --kill n1@1:2B0", "name one of 0 to 1"),
    "a kill of a microbatch too many": ("run JOB --kill n1@1:1B2", "never runs 1B2"),
    "a kill at what the schedule lacks": ("run JOB --kill n1@1:1W0", "never runs 1W0"),
    "a kill at an unknown letter": ("run JOB --kill n1@1:1X0", "never runs 1X0"),
    "a kill at an unknown word": ("run JOB --kill n1@1:sned", "not an instruction"),
    "a kill at a stage's word too many": ("run JOB --kill n1@1:ready:7", "names none of the 2 stages"),
    "a kill without a step": ("run JOB --kill n1", "NODE@STEP"),
    "a kill of step -1": ("run JOB --kill n1@-1", "NODE@STEP"),
    "a kill of nothing": ("run JOB --kill ''", "NODE@STEP"),
    "a kill with an escape": ("run JOB --kill '\x1b[31mn1@1'", "NODE@STEP"),
    "the second of two kills": ("run JOB --kill n1@1 --kill n1@7", "name one of 0 to 2"),
}

OTHERS: dict[str, Case] = {
    "no shapes": ("verify JOB --shapes 2by3", "--shapes"),
    "a shape of no node": ("verify JOB --shapes 1x1,0x2", "--shapes"),
    "more replicas than pipelines": ("verify JOB --shapes 5x2", "--shapes"),
    "more stages than layers": ("verify JOB --shapes 1x99", "--shapes 1x99"),
    "no checkpoint": ("run JOB --resume nothing", "/nothing)"),
    "kills on shapes": ("verify JOB --kills 1 --shapes 1x1", "--kills"),
    "kills -1": ("verify JOB --kills -1", "--kills"),
    "kills that do not fit": ("verify JOB --kills 2", "do not fit"),
    "kills text": ("verify JOB --kills many", "--kills"),
    "a seed of 2**70": ("verify JOB --kills 1 --seed 1180591620717411303424", "--seed"),
    "a seed of -1": ("verify JOB --kills 1 --seed -1", "--seed"),
    "a cluster's name with a path": ("up JOB --name ../../x", "--name"),
    "a cluster's name with a dash first": ("up JOB --name=-x", "--name"),
    "a cluster's name of 65": (f"up JOB --name {'a' * 65}", "--name"),
    "an address of up": ("up JOB --coordinator-address 1:2:3", "--coordinator-address"),
    "down with a path": ("down ../x", "NAME"),
    "a coordinator without a port": ("status --coordinator localhost", "HOST:PORT"),
    "a coordinator of port 0": ("status --coordinator localhost:0", "65535"),
    "a coordinator of port 70000": ("events --coordinator localhost:70000", "65535"),
    "a coordinator of nothing": ("cost --coordinator ''", "--coordinator"),
    "a coordinator of a URL": ("weights --coordinator http://localhost:7070/x", "HOST:PORT"),
    "a bare IPv6 address": ("status --coordinator ::1:7070", "[HOST]:PORT"),
    "nobody there: status": (f"status --coordinator {NOWHERE}", NOWHERE),
    "incidents that follow": ("events --incidents --follow", "leave out --follow"),
    "incidents as JSON": ("events --incidents --json", "--incidents"),
    "nobody there: incidents": (f"events --incidents --coordinator {NOWHERE}", NOWHERE),
    "a kind of event": ("events --kind lost,plann", "did you mean plan?"),
    "nobody there: events": (f"events --coordinator {NOWHERE}", NOWHERE),
    "nobody there: top": (f"top --once --coordinator {NOWHERE}", NOWHERE),
    "nobody there: trace": (f"trace --coordinator {NOWHERE}", NOWHERE),
    "nobody there: pause": (f"pause --coordinator {NOWHERE}", NOWHERE),
    "nobody there: resume": (f"resume --coordinator {NOWHERE}", NOWHERE),
    "a step -1 to trace": ("trace --step -1", "--step"),
    "no steps to trace": ("trace --steps 0", "--steps"),
    "a trace in a folder that is not there": ("trace --out a/b", "make the folder first"),
    "a budget of nan": ("resume --budget nan", "--budget"),
    "a time to stop that is none": ("resume --stop-at soon", "--stop-at"),
    "an engine that is none": ("up JOB --on slrum", "did you mean slurm?"),
    "an option that its engine lacks": ("up JOB --on slurm --with partitoin=x", "did you mean partition?"),
    "a cluster that is not up": ("status --cluster nowhere", "no cluster of that name is up"),
    "a cluster with a path": ("events --cluster ../x", "--cluster"),
    "logs of a cluster with a path": ("logs ../x", "NAME"),
    "no lines of logs": ("logs --tail 0", "--tail"),
    "logs of no level": ("logs --node n0 --level loud", "--level"),
    "logs of a part of no cluster": ("logs nowhere --part n0", "there is no cluster of that name"),
    "runs in a folder that is not there": ("ui --runs nowhere", "nowhere"),
    "clusters with a word": ("clusters now", "now"),
    "nobody there: cost": (f"cost --coordinator {NOWHERE}", NOWHERE),
    "nobody there: drain": (f"drain n1 --coordinator {NOWHERE}", NOWHERE),
    "nobody there: weights": (f"weights --coordinator {NOWHERE} --out w", NOWHERE),
    "drain of no name": (f"drain 'n 1' --coordinator {NOWHERE}", "NODE"),
    "drain of markup": (f"drain '[red]n1' --coordinator {NOWHERE}", "NODE"),
    "a timeout of nan": (f"drain n1 --timeout nan --coordinator {NOWHERE}", "--timeout"),
    "a timeout of inf": (f"drain n1 --timeout inf --coordinator {NOWHERE}", "--timeout"),
    "a timeout of -1": (f"drain n1 --timeout -1 --coordinator {NOWHERE}", "--timeout"),
    "a timeout of 1e300": (f"drain n1 --timeout 1e300 --coordinator {NOWHERE}", "--timeout"),
    "weights to a folder that is not there": (f"weights --coordinator {NOWHERE} --out a/b/w", "make the folder first"),
    "a role that is none": ("health 127.0.0.1:7070 --role stages", "did you mean stage?"),
    "health of no address": ("health nowhere", "HOST:PORT"),
    "a log that is not there": ("cost --log nowhere.jsonl", "cannot be read"),
    "a log that is none": ("cost --log job.toml", "no event"),
    "a log of bytes": ("cost --log binary", "binary"),
    "a log that says it is gzipped": ("cost --log text.gz", "text.gz"),
    "as of nan": ("cost --log job.toml --as-of nan", "--as-of"),
    "prices that are not there": ("prices ls --prices nowhere.toml", "cannot be read"),
    "prices that are none": ("prices ls --prices job.toml", "job.toml"),
    "no checkpoints there": ("checkpoint verify file:///nowhere/at/all", "no checkpoint"),
    "a checkpoint of a step that is not there": ("checkpoint verify . --step 7", "no checkpoint of step 7"),
    "a checkpoint of step -1": ("checkpoint verify . --step -1", "--step"),
    "a checkpoint of an unknown kind": ("checkpoint ls fyle:///tmp/x", "fyle"),
    "a checkpoint's URL with a signature": ("checkpoint ls 'https://h/x?sig=abc'", "sig=***"),
    "export to a folder that is not there": ("checkpoint export . --out a/b", "make the folder first"),
    "export to a folder that has something in it": ("checkpoint export . --hf .", "has something in it"),
    "export to a folder whose parent is not there": ("checkpoint export . --hf a/b", "make that one first"),
    "export to a file and a folder": ("checkpoint export . --hf a --out b", "not allowed with argument"),
    "export averages of nothing": ("checkpoint export . --average --hf a", "no checkpoint"),
    "export a folder of other layers": ("checkpoint export . --hf a", "no checkpoint"),
    "days nan": ("certs init c --days nan", "--days"),
    "days 0": ("certs init c --days 0", "--days"),
    "days 10**9": ("certs init c --days 1000000000", "--days"),
    "a role of certificates that is none": ("certs issue c --role viwer", "did you mean viewer?"),
    "a certificate's node with a path": ("certs issue nowhere --role stage --node ../x", "not a valid name"),
    "no authority": ("certs issue nowhere --role viewer", "no authority"),
    "rounds 0": ("profile JOB --rounds 0", "--rounds"),
    "a profile to a folder that is not there": ("profile JOB --out a/b", "make the folder first"),
    "a trace that is not there": ("simulate --trace nowhere.csv", "cannot be read"),
    "a trace that is none": ("simulate --trace job.toml", "job.toml, line 1"),
    "a trace of bytes": ("simulate --trace binary", "no UTF-8"),
    "hours nan": ("simulate --trace TRACE --hours nan", "--hours"),
    "hours 0": ("simulate --trace TRACE --hours 0", "--hours"),
    "hours inf": ("simulate --hourly 0.1 --hours inf", "--hours"),
    "a probability of 2": ("simulate --hourly 2", "--hourly"),
    "a probability of nan": ("simulate --hourly nan", "--hourly"),
    "a price of -1": ("simulate --trace TRACE --price -1", "--price"),
    "a price of nan": ("simulate --trace TRACE --price nan", "--price"),
    "a model that is not known": ("simulate --trace TRACE --model bart", "did you mean bert?"),
    "both a trace and none": ("simulate --trace TRACE --hourly 0.1", "not allowed with"),
    "neither a trace nor none": ("simulate", "--trace"),
    "a picture in a folder that is not there": ("simulate --trace TRACE --plot a/b.svg", "make the folder first"),
    "a trace to a folder that is not there": (
        "simulate --trace TRACE --write-trace a/b.jsonl",
        "make the folder first",
    ),
    "traffic of nan": ("plan JOB --nodes 3 --prices 1 --hazard 0.1 --traffic nan", "--traffic"),
    "bulk of -1": ("plan JOB --nodes 3 --prices 1 --hazard 0.1 --bulk -1", "--bulk"),
    "a notice of inf": ("plan JOB --nodes 3 --prices 1 --hazard 0.1 --notice inf", "--notice"),
    "machines of a plan": ("plan JOB --nodes 0 --prices 1 --hazard 0.1", "--nodes"),
    "machines of a plan backwards": ("plan JOB --nodes 8-4 --prices 1 --hazard 0.1", "--nodes"),
    "machines of a plan in text": ("plan JOB --nodes some --prices 1 --hazard 0.1", "--nodes"),
    "10**12 machines of a plan": ("plan JOB --nodes 1-1000000000000 --prices 1 --hazard 0.1", "--nodes"),
    "seeds 0": ("plan JOB --nodes 3 --prices 1 --hazard 0.1 --seeds 0", "--seeds"),
    "a deadline of nan": ("plan JOB --nodes 3 --prices 1 --hazard 0.1 --deadline nan", "--deadline"),
    "a hazard of nan": ("plan JOB --nodes 3 --prices 1 --hazard nan", "--hazard"),
    "a price of a plan": ("plan JOB --nodes 3 --prices -1 --hazard 0.1", "--prices"),
    "a machine that is not known": ("plan JOB --nodes 3 --machine nosuch --hazard 0.1", "nosuch"),
    "zones 0": ("plan JOB --nodes 3 --prices 1 --hazard 0.1 --zones 0", "--zones"),
    "a profile that is not there": ("plan JOB --nodes 3 --prices 1 --hazard 0.1 --profile nowhere", "cannot be read"),
    "a profile that is none": ("plan JOB --nodes 3 --prices 1 --hazard 0.1 --profile job.toml", "job.toml"),
    "a speed of 0": ("replay JOB --trace TRACE --speed 0", "--speed"),
    "a speed of nan": ("replay JOB --trace TRACE --speed nan", "--speed"),
    "bursts of -1 s": ("replay JOB --trace TRACE --burst -1", "--burst"),
    "machines -1": ("replay JOB --trace TRACE --machines -1", "--machines"),
    "the dashboard's port": ("ui --listen 127.0.0.1:65536", "65535"),
    "the dashboard's address": ("ui --listen 8501", "HOST:PORT"),
    "the dashboard where all reach it": ("ui --listen 0.0.0.0:8501", "--insecure"),
    "the dashboard's log": ("ui --log nowhere.jsonl", "no such file"),
    "the dashboard's speed": ("ui --demo --speed nan", "--speed"),
}

SERVICES: dict[str, Case] = {
    "a coordinator without a job": ("coordinator --listen 127.0.0.1:0", "--job"),
    "a coordinator of a job that is not there": ("coordinator --job nowhere.toml --listen 127.0.0.1:0", "No such file"),
    "a coordinator of two pipelines": ("coordinator --job JOB --set pipeline.pipelines=0", "pipeline.pipelines"),
    "a trace for two copies": ("coordinator --job JOB --trace nowhere.csv", "copies = 2"),
    "a trace that is not there": (
        "coordinator --job JOB --set resilience.copies=auto --trace nowhere.csv",
        "the trace cannot be read",
    ),
    "a coordinator on port 65536": ("coordinator --job JOB --listen 127.0.0.1:65536", "65535"),
    "a coordinator on no host": ("coordinator --job JOB --listen 7070", "HOST:PORT"),
    "a coordinator that all reach": (
        "coordinator --job JOB --listen 0.0.0.0:0 --redis redis://127.0.0.1:9",
        "--insecure",
    ),
    "a Redis of another kind": ("coordinator --job JOB --redis http://localhost:6379", "redis://"),
    "a Redis of no port": ("coordinator --job JOB --redis redis://localhost:http", "port"),
    "a run's name": ("coordinator --job JOB --run 'a b'", "--run"),
    "a run of no name": ("coordinator --job JOB --run ''", "--run"),
    "a coordinator's name": ("coordinator --job JOB --name '\x1b]0;x\x07'", "--name"),
    "a coordinator's patience": ("coordinator --job JOB --patience soon", "--patience"),
    "no patience at all": ("stage --patience 0", "--patience"),
    "a wait for coordinators without an end": ("stage --coordinator-timeout nan", "--coordinator-timeout"),
    "nodes to wait for": ("coordinator --job JOB --nodes -3", "--nodes"),
    "spares to keep": ("coordinator --job JOB --spares x", "--spares"),
    "seconds to settle": ("coordinator --job JOB --settle-seconds nan", "--settle-seconds"),
    "a heartbeat's timeout of 0": ("coordinator --job JOB --heartbeat-timeout 0", "--heartbeat-timeout"),
    "a heartbeat's timeout of nan": ("coordinator --job JOB --heartbeat-timeout nan", "--heartbeat-timeout"),
    "a link's timeout of inf": ("coordinator --job JOB --link-timeout inf", "--link-timeout"),
    "metrics on port 99999": ("coordinator --job JOB --metrics 99999", "65535"),
    "metrics on a name": ("coordinator --job JOB --metrics prometheus", "--metrics"),
    "a price table that is not there": (
        "coordinator --job JOB --listen 127.0.0.1:0 --prices nowhere",
        "cannot be read",
    ),
    "a stage's name": ("stage --name '[red]'", "--name"),
    "a stage's name of 65": (f"stage --name {'a' * 65}", "--name"),
    "a graph server's name": ("graph-server --name 'a b'", "--name"),
    "a tensor worker's name": ("tensor-worker --name 'a b'", "--name"),
    "a tensor worker's memory": ("tensor-worker --memory much", "--memory"),
    "a tensor worker's wait": ("tensor-worker --connect-timeout nan", "--connect-timeout"),
    "a stage's zone": ("stage --zone 'a\nb'", "--zone"),
    "a stage's market": ("stage --market sopt", "did you mean spot?"),
    "a stage's machine": ("stage --instance-type 'a\tb'", "--instance-type"),
    "a stage's notices": ("stage --notices asw", "asw"),
    "a stage's death": ("stage --kill-at soon", "soon"),
    "a stage's port": ("stage --listen 127.0.0.1:65536", "65535"),
    "a stage that all reach": ("stage --listen 0.0.0.0:0", "--insecure"),
    "a stage's place to be reached at": ("stage --advertise 'some where'", "--advertise"),
    "a stage's seconds to drain": ("stage --drain-seconds nan", "--drain-seconds"),
    "a stage's memory": ("stage --memory 16GB", "--memory"),
    "a stage's memory below nothing": ("stage --memory -1", "--memory"),
    "a stage's memory for kept tensors": ("stage --spill-above 1GB", "--spill-above"),
    "a stage's seconds to connect": ("stage --connect-timeout -1", "--connect-timeout"),
    "nobody there: stage": (f"stage --coordinator {NOWHERE} --connect-timeout 0.1", NOWHERE),
}

CASES = GENERAL | RUN | OTHERS | SERVICES

VARIABLES = {
    "CULM_NODES": ("many", "coordinator --job JOB"),
    "CULM_SPARES": ("-1", "coordinator --job JOB"),
    "CULM_SETTLE_SECONDS": ("soon", "coordinator --job JOB"),
    "CULM_LISTEN": ("7070", "coordinator --job JOB"),
    "CULM_REDIS_URL": ("localhost", "coordinator --job JOB"),
    "CULM_RUN": ("a/b", "coordinator --job JOB"),
    "CULM_NAME": ("a b", "stage"),
    "CULM_RESUME": ("ftp://a:b@c/d", "coordinator --job JOB"),
    "CULM_METRICS": ("x", "stage"),
    "CULM_ALLOW_KILL": ("maybe", "coordinator --job JOB"),
    "CULM_REFLECTION": ("2", "stage"),
    "CULM_INSECURE": ("perhaps", "stage"),
    "CULM_LOG": ("LOUD", "stage"),
    "CULM_LOG_FORMAT": ("xml", "coordinator --job JOB"),
    "CULM_CONNECT_TIMEOUT": ("nan", "stage"),
    "CULM_DRAIN_SECONDS": ("nan", "stage"),
    "CULM_ZONE": ("a\x07b", "stage"),
    "CULM_MARKET": ("black", "stage"),
    "CULM_ADVERTISE": ("a b", "stage"),
    "CULM_NOTICES": ("aws,,", "stage"),
    "CULM_MEMORY": ("all", "stage"),
    "CULM_SPILL_ABOVE": ("-1", "stage"),
    "CULM_COORDINATOR": ("localhost:99999", "status"),
    "CULM_TLS_DIR": ("/nowhere/at/all", "status"),
}


def folder_with_files(folder: Path) -> Path:
    (folder / "job.toml").write_text(tomli_w.dumps(job_with({})))
    (folder / "trace.csv").write_text("0,add,a\n0,add,b\n0,add,c\n3600000,remove,a\n")
    (folder / "binary").write_bytes(b"\xff\xfe\x00\x01" * 20)
    (folder / "text.gz").write_text("this is no gzip")
    return folder


def words_of(line: str) -> list[str]:
    return [REPLACED.get(word, word) for word in shlex.split(line)]


@pytest.mark.parametrize("name", CASES)
def test_a_bad_command_line_gets_one_line(name: str, tmp_path: Path) -> None:
    line, said = CASES[name]
    folder = folder_with_files(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    told = in_process(*words_of(line), folder=folder, CULM_HOME=str(tmp_path / "home")).line
    assert said in told
    assert "\x1b" not in told
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before, "it leaves nothing behind"


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_bad_variable_gets_one_line_that_names_it(variable: str, tmp_path: Path) -> None:
    text, line = VARIABLES[variable]
    folder = folder_with_files(tmp_path)
    assert variable in in_process(*words_of(line), folder=folder, **{variable: text}).line


def test_a_variable_that_is_empty_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CULM_COORDINATOR", "")
    monkeypatch.setenv("CULM_NODES", "")
    assert not make_parser(["status"]).parse_args(["status"]).coordinator, "main finds it"
    assert make_parser(["serve"]).parse_args(["stage"]).coordinator == COORDINATOR
    assert make_parser(["serve"]).parse_args(["coordinator"]).nodes == 0


def test_every_command_and_every_flag_is_tried() -> None:
    """A flag that takes a value is tried with a bad one, unless every text is a good one."""
    lines = " ".join(line for line, _ in CASES.values()) + " " + " ".join(line for _, line in VARIABLES.values())
    for command in MODULES:
        assert command in lines, command
    any_text = {"--region", "--provider", "--model", "--spill-folder"}
    tried = {word.partition("=")[0] for line, _ in CASES.values() for word in line.split()}
    for parser in all_parsers(make_parser()):
        for action in parser._actions:
            if action.nargs != 0 and action.option_strings and not any_text & set(action.option_strings):
                assert tried & set(action.option_strings), f"{parser.prog} {action.option_strings}"


def test_the_tables_are_as_long_as_the_trials_were() -> None:
    assert len(CASES) + len(VARIABLES) >= 120
    assert ROOT.joinpath("examples").is_dir()
