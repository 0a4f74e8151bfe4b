"""Builds checked requests from what callers send: the forms of the flows that can be requested."""

from collections.abc import Mapping
from functools import partial

import msgspec

from tidegate.core.kind import Party
from tidegate.core.money import format_amount, parse_amount
from tidegate.core.ports import InboxRequest
from tidegate.core.refusals import Refusal
from tidegate.core.request import (
    GUILD,
    OPERATOR,
    AccountType,
    Asset,
    CheckedRequest,
    Request,
    TransferRequest,
)
from tidegate.core.request import internal_transfer as checked_transfer
from tidegate.engine.inbox_reader import Form
from tidegate.systems.guild import POINT, book_of, payment
from tidegate.systems.ledger import OUTSIDE, SUSPENSE

LEDGER = "ledger"
DEPOSIT, WITHDRAWAL = "deposit", "external_withdrawal"


class ExternalTransfer(msgspec.Struct, frozen=True):
    """A deposit into the books or a withdrawal from them. A cid makes it exactly once."""

    account: str
    asset: str
    amount: str
    cid: str | None


def external_transfer(
    flow: str,
    wanted: ExternalTransfer,
    owner: int,
    accounts: Mapping[str, AccountType],
    assets: Mapping[str, Asset],
) -> Request | Refusal:
    """A deposit or a withdrawal of an owner. The outside world is the owner's OUTSIDE book."""
    account, asset = accounts.get(wanted.account), assets.get(wanted.asset)
    if account is None:
        return Refusal.INVALID_ACCOUNT_TYPE
    if asset is None:
        return Refusal.INVALID_ASSET
    amount = parse_amount(wanted.amount, asset.decimals)
    if isinstance(amount, Refusal):
        return amount
    party, outside = Party(account.system, account.book, owner), Party(LEDGER, OUTSIDE, owner)
    parties = {"source": party, "target": outside}
    if flow == DEPOSIT:
        # If the target account refuses the credit, the money goes to the suspense book.
        suspense = Party(LEDGER, SUSPENSE, owner)
        parties = {"source": outside, "target": party, "suspense": suspense}
    terms = {"account": wanted.account}
    return Request(owner, flow, parties, asset.id, amount, wanted.cid, space=OPERATOR, terms=terms)


def issue(guild: int, member: int, amount: int, cid: str | None) -> Request:
    """Issue new points to a member: a deposit from the guild's OUTSIDE book."""
    parties = {
        "source": Party(LEDGER, OUTSIDE, guild),
        "target": Party(LEDGER, book_of(member), guild),
        "suspense": Party(LEDGER, SUSPENSE, guild),
    }
    key, terms = cid and f"issue:{cid}", {"member": str(member)}
    return Request(guild, DEPOSIT, parties, POINT, amount, key, space=GUILD, terms=terms)


def forms_of(
    accounts: Mapping[str, AccountType], assets: Mapping[str, Asset]
) -> Mapping[str, Form]:
    """The form of each built-in flow: it checks a request of the inbox and adds the parties."""
    return {
        "internal_transfer": partial(_internal_transfer, accounts, assets),
        DEPOSIT: partial(_external_transfer, accounts, assets),
        WITHDRAWAL: partial(_external_transfer, accounts, assets),
        "pool_transfer": _pool_transfer,
    }


def _internal_transfer(
    accounts: Mapping[str, AccountType], assets: Mapping[str, Asset], inbox_request: InboxRequest
) -> CheckedRequest | Refusal:
    terms = inbox_request.terms
    if terms.keys() != {"from", "to"}:
        return Refusal.INVALID_REQUEST
    wanted = TransferRequest(terms["from"], terms["to"], *_asset_amount(assets, inbox_request))
    return checked_transfer(wanted, inbox_request.owner, accounts, assets)


def _external_transfer(
    accounts: Mapping[str, AccountType], assets: Mapping[str, Asset], inbox_request: InboxRequest
) -> CheckedRequest | Refusal:
    terms, owner, flow = inbox_request.terms, inbox_request.owner, inbox_request.flow
    if terms.keys() == {"member"} and flow == DEPOSIT and inbox_request.space == GUILD:
        member = _integer(terms["member"])
        request: Request | Refusal = Refusal.INVALID_REQUEST
        if member is not None:
            request = issue(owner, member, inbox_request.amount, None)
    elif terms.keys() == {"account"}:
        asset_amount = _asset_amount(assets, inbox_request)
        wanted = ExternalTransfer(terms["account"], *asset_amount, inbox_request.cid)
        request = external_transfer(flow, wanted, owner, accounts, assets)
    else:
        return Refusal.INVALID_REQUEST
    return request if isinstance(request, Refusal) else CheckedRequest(request)


def _pool_transfer(inbox_request: InboxRequest) -> CheckedRequest | Refusal:
    owner, flow, terms = inbox_request.owner, inbox_request.flow, inbox_request.terms
    initiator, target = (_integer(terms.get(name)) for name in ("initiator", "target"))
    if initiator is None or target is None or inbox_request.space != GUILD:
        return Refusal.INVALID_REQUEST
    parties = payment(owner, initiator, target)
    asset_id, amount = inbox_request.asset_id, inbox_request.amount
    return CheckedRequest(Request(owner, flow, parties, asset_id, amount, terms=terms))


def _asset_amount(assets: Mapping[str, Asset], inbox_request: InboxRequest) -> tuple[str, str]:
    """The asset's code and the amount as text, as a caller of the API writes them."""
    asset = next((a for a in assets.values() if a.id == inbox_request.asset_id), None)
    if asset is None:
        return "", ""
    return asset.code, format_amount(inbox_request.amount, asset.decimals)


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else None
