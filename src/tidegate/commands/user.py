"""The commands of an owner: a token, money from outside, transfers, balances."""

import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidegate.client import Answer, ApiProblem, Client
from tidegate.commands.console import (
    DEFAULT_DIRECTORY,
    ApiOptions,
    CommandError,
    OutputOptions,
    print_json,
    print_table,
)
from tidegate.commands.timeline import print_timeline
from tidegate.supervisor.demo_tokens import fresh_cid
from tidegate.supervisor.demo_tokens import token as signed_token

WATCH_S = 0.2
ENDS = ("COMMITTED", "FAILED", "ROLLED_BACK")


class Role(StrEnum):
    USER = "user"
    OPERATOR = "operator"
    APPROVER = "approver"
    AUDITOR = "auditor"


User = Annotated[int, typer.Option(min=1, help="Whose money it is.")]
Cid = Annotated[str | None, typer.Option(help="A name for it: given twice, it happens once.")]


@dataclass(frozen=True, slots=True)
class TokenOptions:
    user: User
    role: Annotated[Role, typer.Option(help="What the token allows.")] = Role.USER
    directory: Annotated[Path, typer.Option("--data", help="Of `tidegate up`.")] = DEFAULT_DIRECTORY


@dataclass(frozen=True, slots=True)
class FundOptions:
    user: Annotated[int, typer.Argument(metavar="USER", min=1)]
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="FUNDING or SPOT")]
    asset: Annotated[str, typer.Argument(metavar="ASSET", help="such as USDT")]
    amount: Annotated[str, typer.Argument(metavar="AMOUNT", help="such as 12.50")]
    cid: Cid = None


@dataclass(frozen=True, slots=True)
class TransferOptions:
    source: Annotated[str, typer.Argument(metavar="FROM", help="FUNDING or SPOT")]
    target: Annotated[str, typer.Argument(metavar="TO", help="SPOT or FUNDING")]
    asset: Annotated[str, typer.Argument(metavar="ASSET", help="such as USDT")]
    amount: Annotated[str, typer.Argument(metavar="AMOUNT", help="such as 12.50")]
    user: User
    cid: Cid = None
    watch: Annotated[bool, typer.Option("--watch", help="Wait for its end, show its life.")] = False


@dataclass(frozen=True, slots=True)
class UserOptions:
    user: User


def token(bearer: TokenOptions) -> None:
    """Print a token that a local Tidegate believes, and nothing else."""
    print(signed_token(bearer.directory, str(bearer.user), bearer.role.value))


def fund(funding: FundOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Deposit money from outside."""
    crossing = {
        "user_id": funding.user,
        "account": funding.account.upper(),
        "asset": funding.asset.upper(),
        "amount": funding.amount,
        "cid": funding.cid or fresh_cid("fund"),
    }
    with access.client("operator") as client:
        made = client.deposit(crossing)
        made = _settled(client, made)
    told = "was already there" if made.get("duplicate") else made["state"]
    what = f"{funding.amount} {funding.asset} to {funding.account}"
    printing.tell(made, f"{told} {made['req_id']}: {what}")


def _settled(client: Client, made: Answer) -> Answer:
    """A deposit is done when it is done, not when it is begun."""
    while made.get("lane") is not None:
        time.sleep(WATCH_S)
        made = client.history(made["req_id"])["transfer"] | {"duplicate": made.get("duplicate")}
    return made


def transfer(wish: TransferOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Move money between two accounts of one owner."""
    asked = {
        "from": wish.source.upper(),
        "to": wish.target.upper(),
        "asset": wish.asset.upper(),
        "amount": wish.amount,
        "cid": wish.cid or fresh_cid("cli"),
        "user_id": wish.user,
    }
    with access.client("user", wish.user) as client:
        try:
            made = client.transfer(asked)
            if wish.watch:
                made = _watched(client, made)
        except ApiProblem as problem:
            if "req_id" not in problem.body:
                raise
            made = problem.body
    if printing.as_json:
        print_json(made)
    elif wish.watch and access.url is None:
        with access.client("auditor") as desk:
            print_timeline(desk.history(made["req_id"]))
    elif made["state"] == "COMMITTED" or made["state"] not in ENDS:
        route = f"{wish.source} → {wish.target}"
        print(f"{made['state']} {made['req_id']}: {wish.amount} {wish.asset} {route}")
    if made["state"] in ("FAILED", "ROLLED_BACK"):
        raise CommandError(
            f"{made.get('code', 'refused')}: {made['req_id']} ended as {made['state']} and the"
            f" money is where it was; see `tidegate show {made['req_id']}`"
        )


def _watched(client: Client, made: Answer) -> Answer:
    with Console(stderr=True).status("waiting for its end"):
        while made["state"] not in ENDS:
            time.sleep(WATCH_S)
            made = client.get(made["req_id"])
    return made


def balances(owner: UserOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """What an owner has, account by account."""
    with access.client("user", owner.user) as client:
        found = client.balances()
    if printing.as_json:
        print_json(found)
    elif not found["balances"]:
        fund = f"tidegate fund {owner.user} FUNDING USDT 100"
        print(f"user {owner.user} has no account yet: `{fund}` makes one")
    else:
        columns = ("account", "asset", "available", "frozen", "status")
        print_table(columns, found["balances"])
