"""The six workloads of Bamboo (NSDI 2023), each at its published size and at one that runs on a laptop."""
