"""Ready-made layers for a job's ``model.layers``."""
