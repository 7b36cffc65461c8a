"""Terms: each leader of a run has one, higher than every one before, and none is issued twice (rule 15).

They are bounded: an era's number (32 bits on the wire) and an event's number (64 bits) begin with a term. So a message
with a huge term is refused where it enters, before anybody tries to go above it.
"""

ERAS_BITS = 12  # of an era's number: the eras that one leader can begin
TERM_LIMIT = (1 << (32 - ERAS_BITS)) - 1  # every term is below
LEAP = 1024  # by how much a term may exceed the highest known one: so many leaders may have come and gone unnoticed


def is_believable(term: int, known: int) -> bool:
    """Whether somebody who knows the term ``known`` may take another's word for this one."""
    return 0 <= term <= known + LEAP and term < TERM_LIMIT
