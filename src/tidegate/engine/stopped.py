"""What a caller is told when the engine stops working before its request is answered."""

from tidegate.core.ports import StoreFault


class EngineStopped(StoreFault):
    """The engine has died, or was stopped, before it could answer.

    If `maybe_accepted`, nobody knows whether the transfer was made: repeat it with the same cid.
    """

    def __init__(self, cause: str, *, maybe_accepted: bool) -> None:
        super().__init__(f"the engine has stopped: {cause}")
        self.maybe_accepted = maybe_accepted
