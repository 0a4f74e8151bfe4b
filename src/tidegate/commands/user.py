"""The commands for users: a token, a deposit, transfers and balances."""

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


User = Annotated[int, typer.Option(min=1, help="The user's number.")]
Cid = Annotated[str | None, typer.Option(help="Idempotency key: the same cid acts only once.")]


@dataclass(frozen=True, slots=True)
class TokenOptions:
    user: User
    role: Annotated[Role, typer.Option(help="Role in the token.")] = Role.USER
    directory: Annotated[Path, typer.Option("--data", help="The directory of `tidegate up`.")] = (
        DEFAULT_DIRECTORY
    )


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
    watch: Annotated[bool, typer.Option("--watch", help="Wait for the end, show history.")] = False


@dataclass(frozen=True, slots=True)
class UserOptions:
    user: User


def token(bearer: TokenOptions) -> None:
    """Print a bearer token for a local Tidegate."""
    print(signed_token(bearer.directory, str(bearer.user), bearer.role.value))


def fund(funding: FundOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Deposit money into a user's account."""
    request = {
        "user_id": funding.user,
        "account": funding.account.upper(),
        "asset": funding.asset.upper(),
        "amount": funding.amount,
        "cid": funding.cid or fresh_cid("fund"),
    }
    with access.client("operator") as client:
        deposit = _wait_until_ended(client, client.deposit(request))
    state = "already deposited:" if deposit.get("duplicate") else deposit["state"]
    money = f"{funding.amount} {funding.asset} to {funding.account}"
    printing.show(deposit, f"{state} {deposit['req_id']}: {money}")


def _wait_until_ended(client: Client, deposit: Answer) -> Answer:
    duplicate = deposit.get("duplicate")
    while deposit.get("lane") is not None:
        time.sleep(WATCH_S)
        deposit = client.history(deposit["req_id"])["transfer"] | {"duplicate": duplicate}
    return deposit


def transfer(chosen: TransferOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Move money between two accounts of one user."""
    request = {
        "from": chosen.source.upper(),
        "to": chosen.target.upper(),
        "asset": chosen.asset.upper(),
        "amount": chosen.amount,
        "cid": chosen.cid or fresh_cid("cli"),
        "user_id": chosen.user,
    }
    with access.client("user", chosen.user) as client:
        try:
            reply = client.transfer(request)
            if chosen.watch:
                reply = _watched(client, reply)
        except ApiProblem as problem:
            if "req_id" not in problem.body:
                raise
            reply = problem.body
    if printing.as_json:
        print_json(reply)
    elif chosen.watch and access.url is None:
        with access.client("auditor") as auditor:
            print_timeline(auditor.history(reply["req_id"]))
    elif reply["state"] == "COMMITTED" or reply["state"] not in ENDS:
        route = f"{chosen.source} → {chosen.target}"
        print(f"{reply['state']} {reply['req_id']}: {chosen.amount} {chosen.asset} {route}")
    if reply["state"] in ("FAILED", "ROLLED_BACK"):
        raise CommandError(
            f"{reply.get('code', 'refused')}: {reply['req_id']} is {reply['state']}, balances are"
            f" unchanged; see `tidegate show {reply['req_id']}`"
        )


def _watched(client: Client, reply: Answer) -> Answer:
    with Console(stderr=True).status("waiting for the transfer to end"):
        while reply["state"] not in ENDS:
            time.sleep(WATCH_S)
            reply = client.get(reply["req_id"])
    return reply


def balances(owner: UserOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Print a user's accounts with their balances."""
    with access.client("user", owner.user) as client:
        reply = client.balances()
    if printing.as_json:
        print_json(reply)
    elif not reply["balances"]:
        fund = f"tidegate fund {owner.user} FUNDING USDT 100"
        print(f"user {owner.user} has no account: `{fund}` creates one")
    else:
        columns = ("account", "asset", "available", "frozen", "status")
        print_table(columns, reply["balances"])
