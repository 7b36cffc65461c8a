"""Jobs to run as they are and to start your own from."""
