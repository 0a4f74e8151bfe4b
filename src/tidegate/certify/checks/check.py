"""A check: a promise, the scene that tests it, and the texts of its failure."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tidegate.certify.trial import Trial


class Check(NamedTuple):
    name: str
    promise: str
    loss: str  # How money would be lost or created if the promise is broken.
    mend: str  # How to fix the system.
    scene: Callable[[Trial], Awaitable[None]]
