"""A fuse that kills its process at a named moment, after SIGUSR1 has armed it."""

import signal

from tests.crash.fuse import Fuse


class NamedFuse(Fuse):
    """Armed later, so that a test can prepare its users through the child that will die."""

    def __init__(self, moment: str, *, armed: bool = False) -> None:
        super().__init__(1)
        self.moment = moment
        self.armed = armed
        signal.signal(signal.SIGUSR1, self.arm)

    def arm(self, *_: object) -> None:
        self.armed = True

    def check(self, moment: str) -> None:
        if self.armed and moment == self.moment:
            super().check(moment)


class Bug(NamedFuse):
    """Raises an error at the named moment instead of killing the process."""

    def check(self, moment: str) -> None:
        if self.armed and moment == self.moment:
            raise ZeroDivisionError(f"a planted bug {moment}")
