"""Engines: what starts, keeps and ends the services of a job on a cluster that exists."""
