"""``make models``: models that others made, each on a grid that loses nodes."""
