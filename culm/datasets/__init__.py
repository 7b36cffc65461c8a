"""Datasets that a job can name: tokens in files, and Hugging Face's. Not imported by Culm itself."""
