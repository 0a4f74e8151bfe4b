"""What a check is: a promise, a scene that tries it, and what to say when it does not hold."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tidegate.certify.trial import Trial


class Check(NamedTuple):
    name: str
    promise: str
    loss: str  # How money would be lost or made.
    mend: str
    scene: Callable[[Trial], Awaitable[None]]
