"""A pause of a run: at a commit it stops to begin steps, until somebody lets it go on."""

# A plan says it, since no node decides that by itself: a node that obeys a plan with a pause begins no step from that
# plan's step on, and keeps all that it holds. Nothing is in flight then, as after the last commit. The run goes on with
# a plan without a pause.

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pause:
    """``since``: unix seconds by the coordinator's clock, when it was asked for."""

    who: str = ""  # asked for it; empty: nobody knows, or a limit of the job's did
    since: float = 0.0
    why: str = ""  # what the run has come to, where a limit led to it; empty: somebody asked

    def __str__(self) -> str:
        return f"paused, since {self.why}" if self.why else f"paused by {self.who or 'somebody who did not say'}"
