"""The commands of a guild's member: pay through the transfer pool, show a payment, list all."""

from dataclasses import dataclass
from typing import Annotated

import typer

from tidegate.commands.console import ApiOptions, OutputOptions, print_json, print_table
from tidegate.commands.user import Cid, User

COLUMNS = ("transfer_id", "status", "target_id", "amount", "retry_count", "round", "created_at")


@dataclass(frozen=True, slots=True)
class PayOptions:
    guild: Annotated[int, typer.Argument(metavar="GUILD", min=1)]
    target: Annotated[int, typer.Argument(metavar="TO", min=1, help="The member to pay.")]
    amount: Annotated[str, typer.Argument(metavar="AMOUNT", help="Whole points, such as 100")]
    user: User
    reason: Annotated[str | None, typer.Option(help="What the payment is for.")] = None
    cid: Cid = None


@dataclass(frozen=True, slots=True)
class ShowOptions:
    id: Annotated[str, typer.Argument(metavar="ID")]
    user: User


@dataclass(frozen=True, slots=True)
class ListOptions:
    user: User
    guild: Annotated[int | None, typer.Option(min=1, help="Only payments in this guild.")] = None
    status: Annotated[str | None, typer.Option(help="Only this status, such as checking.")] = None
    limit: Annotated[int, typer.Option(min=1, max=100)] = 20


def pay(payment: PayOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Pay a member of a guild when the guild's rules allow it."""
    request: dict[str, object] = {
        "guild_id": payment.guild,
        "target_id": payment.target,
        "amount": payment.amount,
        "reason": payment.reason,
        "cid": payment.cid,
    }
    with access.client("user", payment.user) as client:
        reply = client.pool_transfer({k: v for k, v in request.items() if v is not None})
    printing.show(reply, f"{reply['transfer_id']}  {reply['status']}")


def show(chosen: ShowOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Show a transfer of the pool and the results of its checks."""
    with access.client("user", chosen.user) as client:
        reply = client.pool_show(chosen.id)
    checks = " ".join(f"{name}={result}" for name, result in sorted(reply["checks"].items()))
    printing.show(reply, f"{reply['transfer_id']}  {reply['status']}  {checks}".rstrip())


def list_(chosen: ListOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """List a member's transfers in the pool, the newest first."""
    query = {"guild_id": chosen.guild, "status": chosen.status, "limit": chosen.limit}
    with access.client("user", chosen.user) as client:
        reply = client.pool_list(**query)
    if printing.as_json:
        print_json(reply)
    else:
        print_table(COLUMNS, reply["transfers"])
