"""Tensor work of a graph's chunks, which workers do that hold nothing and may vanish at any moment."""
