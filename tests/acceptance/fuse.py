"""A fuse that burns at a moment of one name, and only once it was armed by SIGUSR1."""

import signal

from tests.crash.fuse import Fuse


class NamedFuse(Fuse):
    """So a test can prepare what it needs through the child that it is about to lose."""

    def __init__(self, moment: str, *, armed: bool = False) -> None:
        super().__init__(1)
        self.moment = moment
        self.armed = armed
        signal.signal(signal.SIGUSR1, self.arm)

    def arm(self, *_: object) -> None:
        self.armed = True

    def burn(self, moment: str) -> None:
        if self.armed and moment == self.moment:
            super().burn(moment)


class Bug(NamedFuse):
    """A bug where the other would kill: the code that runs there raises."""

    def burn(self, moment: str) -> None:
        if self.armed and moment == self.moment:
            raise ZeroDivisionError(f"a planted bug {moment}")
