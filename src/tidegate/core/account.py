"""An account: one balance of one owner."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple


class Account(NamedTuple):
    """One balance of one owner. Accounts are locked in the order of these tuples."""

    owner: int
    book: str
    asset_id: int


# Builds an account from a tuple of its three fields, three times faster than calling the class.
# A batch names thousands of accounts.
account_at: Callable[[tuple[int, str, int]], Account] = partial(tuple.__new__, Account)
