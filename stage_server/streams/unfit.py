"""A message that does not fit what is known of the run: it ends its stream and changes nothing else (rule 18)."""


class Unfit(ValueError):
    """What is wrong with the message, in one line."""


def refuse(problem: str) -> None:
    """Raises Unfit if there is a problem."""
    if problem:
        raise Unfit(problem)
