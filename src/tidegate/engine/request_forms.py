"""From the words of a caller to a request: the flows that may be asked for, and what each needs."""

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
    """Money that comes into the books or leaves them: once per cid, or not at all."""

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
    """A deposit or a withdrawal of an owner. The world's side is the owner's OUTSIDE book."""
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
        # What an account will not take waits in suspense.
        suspense = Party(LEDGER, SUSPENSE, owner)
        parties = {"source": outside, "target": party, "suspense": suspense}
    terms = {"account": wanted.account}
    return Request(owner, flow, parties, asset.id, amount, wanted.cid, space=OPERATOR, terms=terms)


def issue(guild: int, member: int, amount: int, cid: str | None) -> Request:
    """Points come into being: a deposit out of the guild's OUTSIDE book."""
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
    """What each flow makes of a request in the inbox."""
    known = accounts, assets
    return {
        "internal_transfer": partial(_internal_transfer, *known),
        DEPOSIT: partial(_crossing, *known),
        WITHDRAWAL: partial(_crossing, *known),
        "pool_transfer": _pool_transfer,
    }


def _internal_transfer(
    accounts: Mapping[str, AccountType], assets: Mapping[str, Asset], asked: InboxRequest
) -> CheckedRequest | Refusal:
    if asked.terms.keys() != {"from", "to"}:
        return Refusal.INVALID_REQUEST
    source, target = asked.terms["from"], asked.terms["to"]
    wish = TransferRequest(source, target, *_amount(assets, asked))
    return checked_transfer(wish, asked.owner, accounts, assets)


def _crossing(
    accounts: Mapping[str, AccountType], assets: Mapping[str, Asset], asked: InboxRequest
) -> CheckedRequest | Refusal:
    if asked.terms.keys() == {"member"} and asked.flow == DEPOSIT and asked.space == GUILD:
        member = _number(asked.terms["member"])
        made: Request | Refusal = Refusal.INVALID_REQUEST
        if member is not None:
            made = issue(asked.owner, member, asked.amount, None)
    elif asked.terms.keys() == {"account"}:
        wanted = ExternalTransfer(asked.terms["account"], *_amount(assets, asked), asked.cid)
        made = external_transfer(asked.flow, wanted, asked.owner, accounts, assets)
    else:
        return Refusal.INVALID_REQUEST
    return made if isinstance(made, Refusal) else CheckedRequest(made)


def _pool_transfer(asked: InboxRequest) -> CheckedRequest | Refusal:
    initiator, target = (_number(asked.terms.get(name)) for name in ("initiator", "target"))
    if initiator is None or target is None or asked.space != GUILD:
        return Refusal.INVALID_REQUEST
    parties = payment(asked.owner, initiator, target)
    return CheckedRequest(
        Request(asked.owner, asked.flow, parties, asked.asset_id, asked.amount, terms=asked.terms)
    )


def _amount(assets: Mapping[str, Asset], asked: InboxRequest) -> tuple[str, str]:
    """The asset and the amount in the words of a caller."""
    asset = next((a for a in assets.values() if a.id == asked.asset_id), None)
    if asset is None:
        return "", ""
    return asset.code, format_amount(asked.amount, asset.decimals)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else None
