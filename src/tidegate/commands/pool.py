"""The commands of a guild's member: pay through the pool, look, list."""

from dataclasses import dataclass
from typing import Annotated

import typer

from tidegate.commands.console import ApiOptions, OutputOptions, print_json, print_table
from tidegate.commands.user import Cid, User

COLUMNS = ("transfer_id", "status", "target_id", "amount", "retry_count", "round", "created_at")


@dataclass(frozen=True, slots=True)
class PayOptions:
    guild: Annotated[int, typer.Argument(metavar="GUILD", min=1)]
    target: Annotated[int, typer.Argument(metavar="TO", min=1, help="Who is paid.")]
    amount: Annotated[str, typer.Argument(metavar="AMOUNT", help="Whole points, such as 100")]
    user: User
    reason: Annotated[str | None, typer.Option(help="What it is for.")] = None
    cid: Cid = None


@dataclass(frozen=True, slots=True)
class ShowOptions:
    id: Annotated[str, typer.Argument(metavar="ID")]
    user: User


@dataclass(frozen=True, slots=True)
class ListOptions:
    user: User
    guild: Annotated[int | None, typer.Option(min=1, help="Only those in this guild.")] = None
    status: Annotated[str | None, typer.Option(help="Such as checking.")] = None
    limit: Annotated[int, typer.Option(min=1, max=100)] = 20


def pay(payment: PayOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Pay a member of a guild as soon as the guild's rules allow it."""
    wish: dict[str, object] = {
        "guild_id": payment.guild,
        "target_id": payment.target,
        "amount": payment.amount,
        "reason": payment.reason,
        "cid": payment.cid,
    }
    with access.client("user", payment.user) as client:
        said = client.pool_transfer({k: v for k, v in wish.items() if v is not None})
    printing.tell(said, f"{said['transfer_id']}  {said['status']}")


def show(looked: ShowOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Show a transfer of the pool and the checks of its round."""
    with access.client("user", looked.user) as client:
        said = client.pool_show(looked.id)
    checks = " ".join(f"{name}={result}" for name, result in sorted(said["checks"].items()))
    printing.tell(said, f"{said['transfer_id']}  {said['status']}  {checks}".rstrip())


def list_(listed: ListOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """List the transfers that a member has made through the pool, the newest first."""
    query = {"guild_id": listed.guild, "status": listed.status, "limit": listed.limit}
    with access.client("user", listed.user) as client:
        said = client.pool_list(**query)
    if printing.as_json:
        print_json(said)
    else:
        print_table(COLUMNS, said["transfers"])
