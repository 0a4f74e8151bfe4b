"""Requests are checked in a fixed order, and the engine checks them again."""

from collections.abc import Iterator
from itertools import combinations
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.core.samples import ID, recheck
from tidegate.core.kind import Party
from tidegate.core.money import MAX_AMOUNT
from tidegate.core.refusals import Refusal, stored_refusal
from tidegate.core.request import (
    BATCH,
    GUILD,
    MAX_CID_CHARS,
    MAX_OWNER,
    MAX_TOTAL_TEXT_CHARS,
    OPERATOR,
    SPACE_MARK,
    USER,
    AccountType,
    Asset,
    CheckedRequest,
    Request,
    TransferRequest,
    internal_transfer,
    transfer_of,
    well_formed_cid,
)
from tidegate.core.transfer import Expiry
from tidegate.flows.internal_transfer import INTERNAL_TRANSFER

ALICE, MALLORY = 7, 8

ACCOUNTS = {
    "FUNDING": AccountType("ledger", "FUNDING"),
    "SPOT": AccountType("trading", "SPOT"),
    "FUTURE": AccountType("trading", "FUTURE", supported=False),
}
USDT = Asset(1, "USDT", 6, min_transfer_amount=1_000_000, max_transfer_amount=100_000_000)
ASSETS = {
    "USDT": USDT,
    "SUSPENDED": replace(USDT, status="SUSPENDED"),
    "FORBIDDEN": replace(USDT, internal_transfer_enabled=False),
    "BOTH": replace(USDT, status="SUSPENDED", internal_transfer_enabled=False),
}
GOOD = TransferRequest("FUNDING", "SPOT", "USDT", "5", cid="c-1", user_id=ALICE)

# The order in which the checks run. It is part of the API.
ORDER = (
    Refusal.FORBIDDEN,
    Refusal.INVALID_REQUEST,
    Refusal.INVALID_ACCOUNT_TYPE,
    Refusal.SAME_ACCOUNT,
    Refusal.UNSUPPORTED_ACCOUNT_TYPE,
    Refusal.INVALID_ASSET,
    Refusal.ASSET_SUSPENDED,
    Refusal.TRANSFER_NOT_ALLOWED,
    Refusal.INVALID_AMOUNT,
    Refusal.PRECISION_OVERFLOW,
    Refusal.OVERFLOW,
    Refusal.AMOUNT_TOO_SMALL,
    Refusal.AMOUNT_TOO_LARGE,
)


CHANGING = {
    Refusal.UNSUPPORTED_ACCOUNT_TYPE,
    Refusal.ASSET_SUSPENDED,
    Refusal.TRANSFER_NOT_ALLOWED,
    Refusal.AMOUNT_TOO_SMALL,
    Refusal.AMOUNT_TOO_LARGE,
}


def check(requested: TransferRequest) -> Request | Refusal:
    """The result for a new request: its refusal, its veto, or the accepted request."""
    checked = internal_transfer(requested, ALICE, ACCOUNTS, ASSETS)
    return checked if isinstance(checked, Refusal) else checked.veto or checked.request


def request_with(faults: frozenset[Refusal]) -> TransferRequest:
    """A request with all of these faults."""
    source = "FUNDING"
    if Refusal.UNSUPPORTED_ACCOUNT_TYPE in faults:
        source = "FUTURE"
    if Refusal.INVALID_ACCOUNT_TYPE in faults:
        source = "MOON"
    return TransferRequest(
        source,
        source if Refusal.SAME_ACCOUNT in faults else "SPOT",
        asset_with(faults),
        amount_with(faults),
        cid="" if Refusal.INVALID_REQUEST in faults else "c-1",
        user_id=MALLORY if Refusal.FORBIDDEN in faults else ALICE,
    )


def asset_with(faults: frozenset[Refusal]) -> str:
    if Refusal.INVALID_ASSET in faults:
        return "NOTHING"
    if {Refusal.ASSET_SUSPENDED, Refusal.TRANSFER_NOT_ALLOWED} <= faults:
        return "BOTH"
    if Refusal.ASSET_SUSPENDED in faults:
        return "SUSPENDED"
    return "FORBIDDEN" if Refusal.TRANSFER_NOT_ALLOWED in faults else "USDT"


def amount_with(faults: frozenset[Refusal]) -> str:
    whole = "5"
    if Refusal.AMOUNT_TOO_SMALL in faults:
        whole = "0"
    if Refusal.AMOUNT_TOO_LARGE in faults:
        whole = "101"
    if Refusal.OVERFLOW in faults:
        whole = "9" * 20
    fraction = ".123456789" if Refusal.PRECISION_OVERFLOW in faults else ".999999"
    return "-" * (Refusal.INVALID_AMOUNT in faults) + whole + fraction


def all_combinations() -> Iterator[frozenset[Refusal]]:
    for count in range(1, len(ORDER) + 1):
        yield from map(frozenset, combinations(ORDER, count))


def test_the_first_refusal_in_the_order_is_returned() -> None:
    for faults in all_combinations():
        if Refusal.AMOUNT_TOO_SMALL in faults and faults & {
            Refusal.AMOUNT_TOO_LARGE,
            Refusal.OVERFLOW,
        }:
            continue  # No amount is too small and too large.
        first = next(refusal for refusal in ORDER if refusal in faults)
        assert check(request_with(faults)) is first, sorted(faults)


def test_a_refusal_that_may_change_with_time_is_a_veto() -> None:
    # A replay is answered before the veto is applied: the first request was accepted.
    for refusal in ORDER:
        checked = internal_transfer(request_with(frozenset({refusal})), ALICE, ACCOUNTS, ASSETS)
        if refusal in CHANGING:
            assert isinstance(checked, CheckedRequest)
            assert checked.veto is refusal
        else:
            assert checked is refusal


def test_a_valid_request_is_between_the_callers_own_accounts() -> None:
    parties = {
        "source": Party("ledger", "FUNDING", ALICE),
        "target": Party("trading", "SPOT", ALICE),
    }
    expected = Request(ALICE, "internal_transfer", parties, 1, 5_000_000, "c-1")
    assert check(GOOD) == replace(expected, terms={"from": "FUNDING", "to": "SPOT"})


def test_without_a_user_id_the_caller_is_the_owner() -> None:
    assert check(replace(GOOD, user_id=None, cid=None)) == Request(
        ALICE,
        "internal_transfer",
        {"source": Party("ledger", "FUNDING", ALICE), "target": Party("trading", "SPOT", ALICE)},
        1,
        5_000_000,
        terms={"from": "FUNDING", "to": "SPOT"},
    )


@pytest.mark.parametrize(
    ("source", "target"), [("SPOT", "FUTURE"), ("FUTURE", "SPOT"), ("FUTURE", "FUNDING")]
)
def test_an_unsupported_account_type_is_refused_on_either_side(source: str, target: str) -> None:
    assert check(replace(GOOD, source=source, target=target)) is Refusal.UNSUPPORTED_ACCOUNT_TYPE


@pytest.mark.parametrize("target", ["funding", "SPOT ", "", "OUTSIDE", "SUSPENSE"])
def test_an_account_type_must_be_listed_exactly(target: str) -> None:
    assert check(replace(GOOD, target=target)) is Refusal.INVALID_ACCOUNT_TYPE


@pytest.mark.parametrize(
    ("amount", "outcome"),
    [
        ("0.999999", Refusal.AMOUNT_TOO_SMALL),
        ("1", 1_000_000),
        ("1.000000", 1_000_000),
        ("100", 100_000_000),
        ("100.000001", Refusal.AMOUNT_TOO_LARGE),
    ],
)
def test_the_bounds_of_an_asset_are_inclusive(amount: str, outcome: int | Refusal) -> None:
    result = check(replace(GOOD, amount=amount))
    assert (result if isinstance(result, Refusal) else result.amount) == outcome


def test_an_asset_without_bounds_allows_the_smallest_and_the_largest_amount() -> None:
    assets = {"USDT": Asset(1, "USDT", 6)}
    for amount in ("0.000001", "1844674407370955161"):
        requested = replace(GOOD, amount=amount)
        checked = internal_transfer(requested, ALICE, ACCOUNTS, assets)
        assert isinstance(checked, CheckedRequest)
        assert checked.veto is None


@pytest.mark.parametrize("cid", ["c", "a b", "~" * MAX_CID_CHARS, "{}", "01890000-0000"])
def test_a_cid_is_printable_ascii(cid: str) -> None:
    assert well_formed_cid(cid)


@pytest.mark.parametrize(
    "cid", ["", "x" * (MAX_CID_CHARS + 1), "a\nb", "a\x00", "\x7f", "é", "\u202e", "\t"], ids=ascii
)
def test_a_cid_with_other_characters_or_length_is_refused(cid: str) -> None:
    assert not well_formed_cid(cid)
    assert check(replace(GOOD, cid=cid)) is Refusal.INVALID_REQUEST


# The engine does not trust its callers: `recheck`.


def request(**fields: object) -> Request:
    accepted = check(GOOD)
    assert isinstance(accepted, Request)
    return replace(accepted, **fields)


SAME = {"source": Party("ledger", "FUNDING", 7), "target": Party("ledger", "FUNDING", 7)}
INVALID_BOOK = {"source": Party("ledger", "FUNDING", 7), "target": Party("ledger", "a\0b", 7)}


def test_a_checked_request_passes_the_recheck() -> None:
    assert recheck(request(), INTERNAL_TRANSFER, frozenset()) is None
    assert recheck(request(lives_s=3600.0), INTERNAL_TRANSFER, frozenset()) is None
    assert (
        recheck(
            request(cid=None, owner=MAX_OWNER, amount=MAX_AMOUNT), INTERNAL_TRANSFER, frozenset()
        )
        is None
    )


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"owner": 0}, Refusal.INVALID_REQUEST),
        ({"owner": -1}, Refusal.INVALID_REQUEST),
        ({"owner": MAX_OWNER + 1}, Refusal.INVALID_REQUEST),
        ({"amount": 0}, Refusal.INVALID_AMOUNT),
        ({"amount": -5}, Refusal.INVALID_AMOUNT),
        ({"amount": MAX_AMOUNT + 1}, Refusal.INVALID_AMOUNT),
        ({"asset_id": 0}, Refusal.INVALID_ASSET),
        ({"asset_id": -1}, Refusal.INVALID_ASSET),
        ({"cid": ""}, Refusal.INVALID_REQUEST),
        ({"lives_s": 0.0}, Refusal.INVALID_REQUEST),
        ({"lives_s": 1e9}, Refusal.INVALID_REQUEST),
        ({"trace": "\ud800"}, Refusal.INVALID_REQUEST),
        ({"trace": "x" * (MAX_TOTAL_TEXT_CHARS + 1)}, Refusal.INVALID_REQUEST),
        ({"detail": {"memo": "a\0b"}}, Refusal.INVALID_REQUEST),
        ({"terms": {"\udfff": "FUNDING"}}, Refusal.INVALID_REQUEST),
        ({"parties": INVALID_BOOK}, Refusal.INVALID_PARTIES),
        ({"parties": SAME}, Refusal.SAME_ACCOUNT),
        ({"owner": 0, "amount": 0, "asset_id": 0}, Refusal.INVALID_REQUEST),
        ({"amount": 0, "asset_id": 0, "cid": ""}, Refusal.INVALID_AMOUNT),
        ({"asset_id": 0, "cid": "", "parties": SAME}, Refusal.INVALID_ASSET),
        ({"cid": "", "parties": SAME}, Refusal.INVALID_REQUEST),
    ],
)
def test_the_recheck_refuses_invalid_fields_in_a_fixed_order(
    fields: dict[str, object], refusal: Refusal
) -> None:
    assert recheck(request(**fields), INTERNAL_TRANSFER, frozenset()) is refusal


# The fingerprint.


def test_equivalent_requests_have_the_same_fingerprint() -> None:
    same_amount = check(replace(GOOD, amount="5.000000"))
    assert isinstance(same_amount, Request)
    assert same_amount.fingerprint() == request().fingerprint()
    reordered = dict(reversed(list(request().parties.items())))
    assert request(parties=reordered).fingerprint() == request().fingerprint()
    assert len(request().fingerprint()) == 16


@pytest.mark.parametrize(
    "fields",
    [
        {"amount": 5_000_001},
        {"asset_id": 2},
        {"flow": "deposit"},
        {"detail": {"memo": "m"}},
        {"parties": SAME},
        {"lives_s": 60.0},
    ],
    ids=str,
)
def test_another_request_has_another_fingerprint(fields: dict[str, object]) -> None:
    plain = request(terms=None)
    assert request(terms=None, **fields).fingerprint() != plain.fingerprint()
    assert request(terms=None, **fields).older_fingerprint() != plain.older_fingerprint()


def test_moving_text_between_terms_changes_the_fingerprint() -> None:
    fingerprint = request(terms={"a": "bc", "d": ""}).fingerprint()
    for terms in ({"ab": "c", "d": ""}, {"a": "bc"}, {"a": "b", "cd": ""}, {"d": "", "a": "bd"}):
        assert request(terms=terms).fingerprint() != fingerprint
    assert request(terms={"d": "", "a": "bc"}).fingerprint() == fingerprint


@pytest.mark.parametrize(
    "fields", [{"cid": "c-2"}, {"trace": "t"}, {"parent": UUID(int=1)}], ids=str
)
def test_key_trace_and_parent_are_not_part_of_the_fingerprint(
    fields: dict[str, object],
) -> None:
    assert request(**fields).fingerprint() == request().fingerprint()


def test_a_new_transfer_has_the_fields_of_its_request() -> None:
    requested = request(detail={"memo": "m"}, parent=UUID(int=1), trace="t")
    transfer = transfer_of(requested, INTERNAL_TRANSFER, ID)
    assert (transfer.id, transfer.state, transfer.lane) == (ID, "SOURCE_PENDING", "ledger")
    for field in ("owner", "flow", "parties", "asset_id", "amount", "cid", "detail", "parent"):
        assert getattr(transfer, field) == getattr(requested, field)
    assert (transfer.trace, transfer.version, transfer.attempts) == ("t", 0, 0)


def test_a_key_of_one_space_is_never_a_key_of_another() -> None:
    spaces = (USER, OPERATOR, GUILD, BATCH)
    keys = [request(cid=cid, space=space).key for space in spaces for cid in ("x", "operator:x")]
    assert len(set(keys)) == len(keys)
    assert request(cid="x").key == "x", "the key of a user has no prefix"
    assert request(cid=None).key is None
    assert not well_formed_cid(f"operator{SPACE_MARK}x"), "callers cannot write such a key"


def test_a_request_expires_after_a_duration_or_at_a_time() -> None:
    assert request().expiry is None
    assert request(lives_s=5.0).expiry == Expiry(after_s=5.0)
    assert request(expires_us=7).expiry == Expiry(at_us=7)


def test_a_stored_refusal_of_a_newer_version_is_a_refusal() -> None:
    assert stored_refusal("EXPIRED") is Refusal.EXPIRED
    assert stored_refusal("DAILY_LIMIT_EXCEEDED") is Refusal.KEY_REFUSED
    assert stored_refusal("OF_A_NEWER_VERSION") is Refusal.INVALID_REQUEST
