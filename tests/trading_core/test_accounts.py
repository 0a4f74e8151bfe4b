"""Accounts are found, whether their group stores them in its list or in its dict."""

import random
from collections.abc import Callable, Iterable

import pytest

from tests.trading_core.scenes import ANN, BOB
from tidegate.core.wire import account
from tidegate.trading_core.accounts import (
    ACCOUNT_PARTS,
    MAX_ENTRIES_PER_ACCOUNT,
    NO_ACCOUNT,
    AccountGroup,
    Accounts,
    AccountState,
    GroupTotal,
)

DICE = random.Random(7)
ORDERS: dict[str, Callable[[], Iterable[int]]] = {
    "consecutive": lambda: range(1, 3_001),
    "descending": lambda: range(3_000, 0, -1),
    "shuffled": lambda: DICE.sample(range(1, 4_001), 3_000),
    "sparse": lambda: DICE.sample(range(2**62, 2**63 - 1), 3_000),
    "mixed": lambda: [
        *range(500),
        *DICE.sample(range(2**40), 1_000),
        *range(500, 1_500),
    ],
    "smallest and largest": lambda: [MAX_U64, 0, MAX_U64 - 1, 1],
}

MAX_U64 = 2**64 - 1


def add(accounts: Accounts, party: bytes) -> AccountState:
    state = AccountState(len(accounts), GroupTotal(b""))
    accounts.add(party, state)
    return state


@pytest.mark.parametrize("order", ORDERS)
def test_every_account_is_found_and_no_other(order: str) -> None:
    accounts, model = Accounts(), dict[bytes, AccountState]()
    for owner in ORDERS[order]():
        for asset in (5, 6) if owner % 3 else (5,):
            party = account(1, asset, owner)
            assert accounts.find(party) is None
            model[party] = add(accounts, party)
    for party, state in model.items():
        assert accounts.find(party) is state
    assert list(accounts.items()) == list(model.items()), "in the order of their numbers"
    assert [state.number for state in accounts] == list(range(len(model)))
    queries = DICE.choices([*model, account(1, 5, 2**50 + 1), account(1, 7, 1), ANN], k=500)
    one_group = [party for party in queries if party.startswith(ANN[:5])]
    for parties in (queries, queries[:1], one_group, []):
        names, owners = (
            zip(*map(ACCOUNT_PARTS.unpack, parties), strict=True) if parties else ((), ())
        )
        found = accounts.find_all(names, owners)
        assert list(found) == [model.get(party, NO_ACCOUNT) for party in parties]
        if len(set(names)) == 1:
            assert accounts.find_all(names[:1], owners) == found, "one group applies to all"


def test_dense_owner_numbers_are_in_the_list_and_the_list_stays_small() -> None:
    for order, dense in (("shuffled", True), ("descending", True), ("sparse", False)):
        group = AccountGroup(b"group")
        for number, owner in enumerate(ORDERS[order]()):
            group.add(owner, AccountState(number, group.total))
        assert (len(group._dense) >= 2_048) == dense
        assert len(group._dense) <= MAX_ENTRIES_PER_ACCOUNT * 3_000
        assert (len(group._sparse) < 2_000) == dense


def test_new_accounts_are_opened_once_and_in_order() -> None:
    accounts = Accounts()
    add(accounts, BOB)
    names, owners = zip(*map(ACCOUNT_PARTS.unpack, (ANN, BOB, ANN)), strict=True)
    first, second, third = accounts.open_all(names, owners)
    assert (first.number, second.number, third) == (1, 0, first)
    assert tuple(accounts.open_all(names[:1], owners)) == (first, second, first)
    assert accounts.open_all((), ()) == ()
    assert len(accounts) == 2


def test_an_account_added_out_of_order_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="added out of order"):
        Accounts().add(ANN, AccountState(1, GroupTotal(b"")))


def test_the_missing_account_is_never_changed() -> None:
    assert (NO_ACCOUNT.number, NO_ACCOUNT.status, NO_ACCOUNT.balance) == (-1, 0, 0)
