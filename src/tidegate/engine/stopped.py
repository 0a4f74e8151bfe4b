"""The error that callers get when the engine stops before it has answered their request."""

from tidegate.core.ports import StoreFault


class EngineStopped(StoreFault):
    """The engine has failed, or was stopped, before it could answer.

    If `maybe_accepted` is true, the transfer may exist: repeat the request with the same cid.
    """

    def __init__(self, reason: str, *, maybe_accepted: bool) -> None:
        super().__init__(f"the engine has stopped: {reason}")
        self.maybe_accepted = maybe_accepted
