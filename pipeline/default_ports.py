"""Where the services listen, and are looked for, unless somebody says otherwise."""

COORDINATOR_PORT = 7070
UI_PORT = 8501
COORDINATOR = f"127.0.0.1:{COORDINATOR_PORT}"
