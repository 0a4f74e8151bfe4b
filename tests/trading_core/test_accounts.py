"""An account is found wherever it stands: in the list of its group or apart from it."""

import random
from collections.abc import Callable, Iterable

import pytest

from tests.trading_core.scenes import ANN, BOB
from tidegate.core.wire import MAX_U64, account
from tidegate.trading_core.accounts import (
    NOBODY,
    PARTS,
    SPARSEST,
    AccountGroup,
    Accounts,
    AccountState,
    GroupTotal,
)

DICE = random.Random(7)
ORDERS: dict[str, Callable[[], Iterable[int]]] = {
    "one after another": lambda: range(1, 3_001),
    "from behind": lambda: range(3_000, 0, -1),
    "in any order": lambda: DICE.sample(range(1, 4_001), 3_000),
    "far apart": lambda: DICE.sample(range(2**62, 2**63 - 1), 3_000),
    "of both kinds": lambda: [*range(500), *DICE.sample(range(2**40), 1_000), *range(500, 1_500)],
    "the least and the greatest": lambda: [MAX_U64, 0, MAX_U64 - 1, 1],
}


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
    asked = DICE.choices([*model, account(1, 5, 2**50 + 1), account(1, 7, 1), ANN], k=500)
    for some in (asked, asked[:1], [party for party in asked if party.startswith(ANN[:5])], []):
        names, owners = zip(*map(PARTS.unpack, some), strict=True) if some else ((), ())
        found = accounts.find_all(names, owners)
        assert list(found) == [model.get(party, NOBODY) for party in some]
        if len(set(names)) == 1:
            assert accounts.find_all(names[:1], owners) == found, "one group stands for all"


def test_accounts_that_stand_close_are_listed_and_take_little_room() -> None:
    for order, listed in (("in any order", True), ("from behind", True), ("far apart", False)):
        group = AccountGroup(b"group")
        for number, owner in enumerate(ORDERS[order]()):
            group.add(owner, AccountState(number, group.total))
        assert (len(group._listed) >= 2_048) == listed
        assert len(group._listed) <= SPARSEST * 3_000
        assert (len(group._apart) < 2_000) == listed


def test_new_accounts_are_opened_once_and_in_their_turn() -> None:
    accounts = Accounts()
    add(accounts, BOB)
    names, owners = zip(*map(PARTS.unpack, (ANN, BOB, ANN)), strict=True)
    first, second, third = accounts.open_all(names, owners)
    assert (first.number, second.number, third) == (1, 0, first)
    assert tuple(accounts.open_all(names[:1], owners)) == (first, second, first)
    assert accounts.open_all((), ()) == ()
    assert len(accounts) == 2


def test_an_account_out_of_turn_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="out of turn"):
        Accounts().add(ANN, AccountState(1, GroupTotal(b"")))


def test_nobody_stays_nobody() -> None:
    assert (NOBODY.number, NOBODY.status, NOBODY.balance) == (-1, 0, 0)
