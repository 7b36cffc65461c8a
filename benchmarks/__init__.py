"""What Culm costs and how fast it is back after a node is lost, measured."""
