"""A graph as a job's data: its edges, the chunks that it is cut into, and the layers that are trained on it."""
