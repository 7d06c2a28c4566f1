"""The one error that people see: what is wrong, where, and what to do about it."""


class UnusableError(Exception):
    """Something outside the protocol makes the request impossible (a bad option, a missing program, no server).

    ``str(error)`` is one line: ``WHAT (WHERE): WHAT TO DO``. The command line prints it and exits with code 2.
    """

    def __init__(self, what: str, where: str, todo: str) -> None:
        super().__init__(f"{what} ({where}): {todo}")
        self.what = what
        self.where = where
        self.todo = todo
