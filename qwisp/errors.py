"""Errors a user can act on: what happened with the numbers, then what to do."""

from __future__ import annotations


class QwispError(Exception):
    """What went wrong (`what`, with its numbers) and what to do (`todo`).

    Every surface prints the two as two lines; `exit_code` is what the command line returns.

    >>> print(BadInput("size '0' is 0 bytes", "give a size above zero"))
    size '0' is 0 bytes
    give a size above zero
    """

    exit_code = 2

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(what, todo)
        self.what = what
        self.todo = todo

    def __str__(self) -> str:
        return f"{self.what}\n{self.todo}"


class BadInput(QwispError):
    """A value, file or setting that cannot be used as given."""


class BadConfig(BadInput):
    """A model description that is not understood or contradicts itself; `key` names the culprit."""

    def __init__(self, what: str, todo: str, key: str = "") -> None:
        super().__init__(what, todo)
        self.key = key


class BadTrace(BadInput):
    """A trace line that cannot be read; the text names line and column (both 1-based)."""

    def __init__(self, what: str, todo: str, line: int = 0, column: int | str = 0) -> None:
        super().__init__(what, todo)
        self.line = line
        self.column = column


class NotCalibrated(QwispError):
    """Times were asked for a model and machine nobody has measured.

    `remarks` are sentences about what is known all the same.
    """

    def __init__(self, what: str, todo: str, remarks: tuple[str, ...] = ()) -> None:
        super().__init__(what, todo)
        self.remarks = remarks


class NotInstalled(QwispError):
    """An optional package or program is missing."""


class CheckFailed(QwispError):
    """A check ran and its answer is no: a miss, an under-prediction, bits that differ."""

    exit_code = 1


class SchedulerBug(QwispError):
    """An invariant of the scheduler is broken. This is our fault, never the user's."""

    exit_code = 1

    def __init__(self, what: str) -> None:
        super().__init__(what, "this is a bug in qwisp: please report it with the facts file")


class ExecutorFault(QwispError):
    """An executor answered what the contract does not allow."""

    exit_code = 1

    def __init__(self, what: str) -> None:
        super().__init__(what, "check the executor with qwisp.testing.check_executor")
