"""What it takes to move state to who is to hold it. Pure."""

STATE_BYTES = 12  # of a parameter with two optimizer moments, in float32
# The part of training's speed that is lost while state moves: ``seed_bytes_per_second`` is chosen so that it is no
# more.
SLOWDOWN = 0.1
