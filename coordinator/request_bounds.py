"""What people may ask of the coordinator (rule 18). Pure: what is wrong with it in words, or nothing."""

from culm.pipeline.plan_bounds import LATEST, LONGEST_PLACE, name_problem, number_problem, text_problem
from culm.protos import coordinator_pb2 as pb

LONGEST_WORD = 256  # characters
MOST_DOLLARS = 1e12


def drain_problem(request: pb.DrainRequest) -> str:
    return name_problem("the node", request.node) or text_problem("why", request.why, LONGEST_PLACE)


def who_problem(who: str) -> str:
    """Of whoever asks for something."""
    return text_problem("who asks", who, LONGEST_WORD)


def lines_problem(request: pb.ListLogLinesRequest) -> str:
    """Of what somebody asks."""
    return name_problem("the node", request.node) if request.node else ""


def resume_problem(request: pb.ResumeRequest) -> str:
    """Of what an operator asks."""
    return (
        who_problem(request.who)
        or number_problem("the budget", request.budget, MOST_DOLLARS)
        or number_problem("the time to stop at", request.stop_at, LATEST)
    )


def kill_problem(request: pb.KillRequest) -> str:
    """Of what an operator asks. ``at``: STEP:INSTRUCTION, or nothing."""
    step, _, instruction = request.at.partition(":")
    wrong = len(request.at) > LONGEST_WORD or not (step.isascii() and step.isdecimal() and instruction)
    if request.at and wrong:
        return f"{request.at[:80]!r} names no instruction: write STEP:INSTRUCTION, such as 12:2B3"
    return name_problem("the node", request.node)
