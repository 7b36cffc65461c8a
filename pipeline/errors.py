"""Errors by what the caller does next."""


class JobError(Exception):
    """The job file or the code it names is at fault: fix it. Says what is wrong, where, and how to mend it."""

    def __init__(self, what: str, where: str, mend: str) -> None:
        super().__init__(f"{where}: {what}; {mend}")
        self.what = what
        self.where = where
        self.mend = mend


class StorageAway(JobError):
    """The storage of checkpoints does not answer. The job may be right: try again."""


class Unavailable(Exception):
    """A program or service that this one needs is not there: install or start it. Says which, and how."""
