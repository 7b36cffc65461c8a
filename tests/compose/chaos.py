"""What is done to a cluster: seeded random kills, stops, freezes, cuts and losses of memory, each told with its time.

An action disturbs and then makes good what no engine would mend by itself (a container that was killed by hand stays
down). Some leave that to a later moment, so that troubles overlap.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.compose.engine import HANGS, EngineError, Project, docker

SERVICES = ("coordinator", "redis", "ui")
EMPTY_REDIS = "REDISCLI_AUTH=$(cat /tls/password) redis-cli --tls --cacert /tls/ca.crt FLUSHALL"
# Routes that refuse: nothing goes to those addresses, and what comes from them gets no answer. As ip route writes them,
# which the images lack: SIOCADDRT or SIOCDELRT with RTF_UP | RTF_REJECT. Without an address: to both halves of each
# network that the container is in, which go before the whole. A container that is started again has none.
ROUTES = """
import fcntl, socket, struct, sys
def refuse(address, mask):
    sockaddr = lambda number: struct.pack("=HHI8x", socket.AF_INET, 0, number)
    ends = sockaddr(address), sockaddr(0), sockaddr(mask)
    route = struct.pack("L16s16s16sHhLPhPLLH", 0, *ends, 0x201 | host(mask), *[0] * 8)
    fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), int(sys.argv[1], 16), route)
def host(mask):
    return 4 * (mask == 0xffffffff)
def turned(number):  # a number in the machine's order is an address in the network's
    return int.from_bytes(number.to_bytes(4, "little"), "big")
for address in sys.argv[2:]:
    refuse(int.from_bytes(socket.inet_aton(address), "little"), 0xffffffff)
for line in list(open("/proc/net/route"))[1:] if not sys.argv[2:] else ():
    _, address, _, flags, _, _, _, mask = line.split()[:8]
    if int(flags, 16) == 1 and address != "00000000":  # up, and no gateway
        whole, length = turned(int(mask, 16)), bin(int(mask, 16)).count("1")
        half = 1 << (31 - length)
        for first in (turned(int(address, 16)), turned(int(address, 16)) | half):
            refuse(turned(first), turned(whole | half))
"""
CUT, MEND = "890b", "890c"


@dataclass(kw_only=True)
class Chaos:
    """One run's. ``told`` gets a line for each action, with the seconds since the beginning."""

    project: Project
    seed: int
    say: Callable[[str], None]
    without: str = ""  # words, separated by commas: an action whose name has one of them is left out
    told: list[str] = field(default_factory=list)
    dismissed: list[str] = field(default_factory=list)  # nodes that ended as if the run were done

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._began = time.monotonic()
        self._later: list[Callable[[], object]] = []  # what is still to be made good
        actions: tuple[tuple[int, Callable[[], None]], ...] = (
            (4, self.kill_a_stage),
            (4, self.kill_the_processes_of_a_stage),
            (3, self.freeze_a_stage),
            (3, self.cut_a_stage_off),
            (3, self.cut_a_link),
            (2, self.restart_a_stage),
            (2, self.kill_two_stages),
            (3, self.kill_a_service),
            (3, self.restart_a_service),
            (2, self.stop_and_start_a_service),
            (2, self.freeze_a_service),
            (2, self.cut_a_service_off),
            (1, self.restart_all_stages),
            (2, self.empty_redis),
            (2, self.empty_redis_and_kill_the_coordinator),
            (1, self.lose_the_volume_of_redis),
        )
        left_out = tuple(filter(None, self.without.split(",")))
        self._actions = [a for a in actions if not any(word in a[1].__name__ for word in left_out)]

    def act(self) -> None:
        """One action. What went wrong with docker itself is told: a container may be just restarting."""
        weights, actions = zip(*self._actions, strict=True)
        action = self._random.choices(actions, weights)[0]
        try:
            action()
        except EngineError as error:
            self._tell(f"  not done: {error}")

    def mend(self) -> None:
        """What was left for later is made good: a coordinator that was frozen answers again.

        What fails is tried once more after the rest: no service is started while one that it needs is frozen.
        """
        for mend in [mend for mend in self._later if not self._mend(mend)]:
            self._mend(mend)
        self._later.clear()

    def make_good(self) -> None:
        """Everything is up and connected again."""
        began = time.monotonic()
        # Nobody told a node to end for good, and no restart policy brings back what ended with 0.
        self.dismissed += self.project.ended("stage")
        while True:
            try:
                self.project.compose("up", "--detach", "--no-build", "--no-recreate")
                return
            except EngineError as error:  # one that others depend on was found unhealthy: it is being started again
                assert time.monotonic() - began < HANGS, "it does not come up again"
                self._tell(f"  docker compose up: {str(error).splitlines()[-1]}")
                time.sleep(1.0)

    def pause(self, least: float, most: float) -> None:
        """Lets the run go on undisturbed for a random time."""
        time.sleep(self._random.uniform(least, most))

    def kill_a_stage(self) -> None:
        stage = self._stage()
        self._tell(f"docker kill {stage}")
        docker("kill", stage)
        self._then(lambda: docker("start", stage), 1.0, 6.0)

    def kill_the_processes_of_a_stage(self) -> None:
        self._kill_the_processes_of(self._stage())

    def freeze_a_stage(self) -> None:
        self._freeze(self._stage())

    def cut_a_stage_off(self) -> None:
        self._cut_off(self._stage())

    def cut_a_link(self) -> None:
        """Two stages do not reach each other; both reach the coordinator."""
        one, other = self._stages(2)
        address = _address(other, f"{self.project.name}_default")
        self._tell(f"{one} reaches {other} no more")
        self._route(one, CUT, address)
        self._then(lambda: self._route(one, MEND, address), 1.0, 12.0)

    def restart_a_stage(self) -> None:
        stage = self._stage()
        self._tell(f"docker restart {stage}")
        docker("restart", "--time", "30", stage)

    def kill_two_stages(self) -> None:
        """Nodes are lost in bulk; both copies of a stage may go."""
        two = self._stages(2)
        self._tell(f"docker kill {' '.join(two)}")
        docker("kill", *two)
        self._then(lambda: docker("start", *two), 1.0, 6.0)

    def kill_a_service(self) -> None:
        (service,) = self.project.containers(self._random.choice(SERVICES))
        if self._random.random() < 0.5:
            self._kill_the_processes_of(service)
        else:
            self._tell(f"docker kill {service}")
            docker("kill", service)
            self._then(lambda: docker("start", service), 0.5, 8.0)

    def restart_a_service(self) -> None:
        service = self._random.choice(SERVICES)
        self._tell(f"docker compose restart {service}")
        self.project.compose("restart", service)

    def stop_and_start_a_service(self) -> None:
        service = self._random.choice(SERVICES)
        self._tell(f"docker compose stop {service}")
        self.project.compose("stop", service)
        self._then(lambda: self.project.compose("start", service), 1.0, 10.0)

    def freeze_a_service(self) -> None:
        self._freeze(*self.project.containers(self._random.choice(SERVICES)))

    def cut_a_service_off(self) -> None:
        service = self._random.choice(("coordinator", "redis"))
        (container,) = self.project.containers(service)
        self._cut_off(container)

    def restart_all_stages(self) -> None:
        self._tell("docker compose restart stage")
        self.project.compose("restart", "stage")

    def empty_redis(self) -> None:
        (redis,) = self.project.containers("redis")
        self._tell("FLUSHALL")
        docker("exec", redis, "sh", "-c", EMPTY_REDIS)

    def empty_redis_and_kill_the_coordinator(self) -> None:
        (coordinator,) = self.project.containers("coordinator")
        self.empty_redis()
        self._kill_the_processes_of(coordinator)

    def lose_the_volume_of_redis(self) -> None:
        self._tell("Redis loses its volume")
        self.project.compose("stop", "redis")
        empty = ("run", "--rm", "--no-deps", "--no-TTY", "--entrypoint", "sh", "redis", "-c", "rm -rf /data/*")
        self.project.compose(*empty)
        self.project.compose("start", "redis")

    def _stage(self) -> str:
        (stage,) = self._stages(1)
        return stage

    def _stages(self, count: int) -> list[str]:
        """So many of those that run at present."""
        running = self.project.running("stage")
        if len(running) < count:
            raise EngineError(f"{len(running)} stages are running")
        return self._random.sample(running, count)

    def _kill_the_processes_of(self, container: str) -> None:
        """But for PID 1, which ends by itself then; the engine starts the container again."""
        self._tell(f"kill -9 -1 in {container}")
        docker("exec", container, "sh", "-c", "kill -9 -1")

    def _freeze(self, container: str) -> None:
        self._tell(f"docker pause {container}")
        docker("pause", container)
        self._then(lambda: docker("unpause", container), 0.5, 8.0)

    def _cut_off(self, container: str) -> None:
        """It reaches nobody. It keeps its addresses, as a machine behind a broken switch does."""
        self._tell(f"{container} is cut off")
        self._route(container, CUT)
        self._then(lambda: self._route(container, MEND), 1.0, 10.0)

    def _route(self, container: str, how: str, *addresses: str) -> None:
        """Sends a helper into the container's network that may change its routes."""
        words = (
            "--network",
            f"container:{container}",
            "--cap-add",
            "NET_ADMIN",
            "--user",
            "0",
            "--entrypoint",
            "python3",
        )
        docker("run", "--rm", *words, "culm/coordinator", "-c", ROUTES, how, *addresses)

    def _then(self, mend: Callable[[], object], least: float, most: float) -> None:
        """Makes it good after a while; or, one time in four, only after more has happened."""
        if self._random.random() < 0.25:
            self._later.append(mend)
            return
        self.pause(least, most)
        if not self._mend(mend):
            self._later.append(mend)

    def _mend(self, mend: Callable[[], object]) -> bool:
        """Whether it could be done. Else it came back by another way, since a restart also unpauses and reconnects; or
        something else has to be made good first.
        """
        try:
            mend()
        except EngineError as error:
            self._tell(f"  not made good, or already: {str(error).splitlines()[-1]}")
            return False
        return True

    def _tell(self, what: str) -> None:
        line = f"{time.strftime('%H:%M:%S')} {time.monotonic() - self._began:7.1f} s  {what}"
        self.told.append(line)
        self.say(line)


def _address(container: str, network: str) -> str:
    found = docker("inspect", "--format", f'{{{{(index .NetworkSettings.Networks "{network}").IPAddress}}}}', container)
    if not (address := found.strip()):
        raise EngineError(f"{container} has no address in {network}: it is down")
    return address
