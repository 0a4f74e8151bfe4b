"""The commands of operators, approvers and auditors: show, retry, resolve, halt, resume, audit."""

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from tidegate.client import Answer
from tidegate.commands.console import (
    ApiOptions,
    CommandError,
    OutputOptions,
    print_json,
    print_table,
)
from tidegate.commands.progress import watched_audit
from tidegate.commands.timeline import print_timeline
from tidegate.flows import FLOWS

TAIL_S = 0.5
PAGE = 100
COLUMNS = ("req_id", "user_id", "flow", "amount", "asset", "state", "lane", "attempts", "error")
BOOKS = ("asset", "funding", "spot", "held", "in_flight", "external", "gap")


@dataclass(frozen=True, slots=True)
class TransferChoice:
    id: Annotated[str, typer.Argument(metavar="ID", help="A ULID or a UUID.")]


@dataclass(frozen=True, slots=True)
class ReasonOptions:
    reason: Annotated[str, typer.Argument(metavar="REASON", help="Why; it is recorded.")]


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    reason: Annotated[str, typer.Argument(metavar="REASON", help="Why; it is recorded.")]
    halt: Annotated[
        list[int] | None,
        typer.Option("--halt", help="End only this halt; may be repeated."),
    ] = None


class ProposedAnswer(StrEnum):
    """The answers that people can give: done, not done, or into the owner's suspense book."""

    DONE = "done"
    REJECTED = "rejected"
    SUSPENSE = "suspense"


Name = Annotated[str | None, typer.Option("--as", help="Your name; default: the login name.")]


@dataclass(frozen=True, slots=True)
class ResolveOptions:
    answer: Annotated[ProposedAnswer, typer.Option(help="The result of the open operation.")]
    reason: Annotated[str, typer.Option(help="Why; it is recorded.")]
    evidence: Annotated[list[str], typer.Option(help="NAME=VALUE; may be repeated.")]
    name: Name = None


@dataclass(frozen=True, slots=True)
class ConfirmOptions:
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Printed by `resolve`.")]
    name: Name = None


@dataclass(frozen=True, slots=True)
class StuckOptions:
    seconds: Annotated[int, typer.Option(min=0, help="Least age of the transfers.")] = 60


@dataclass(frozen=True, slots=True)
class SearchOptions:
    user: Annotated[int | None, typer.Option(min=1, help="Only transfers of this user.")] = None
    flow: Annotated[str | None, typer.Option(help="Only transfers of this flow.")] = None


def show(which: TransferChoice, access: ApiOptions, printing: OutputOptions) -> None:
    """Show one transfer with every answer and every attempt."""
    with access.client("auditor") as client:
        life = client.history(which.id)
    if printing.as_json:
        print_json(life)
    else:
        print_timeline(life)


def tail(chosen: SearchOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Show transfers as they move, until Ctrl-C."""
    before: dict[str, tuple[str, int]] | None = None
    with access.client("auditor") as client:
        while True:
            page = client.search(owner=chosen.user, flow=chosen.flow, limit=PAGE)["transfers"]
            now = {row["req_id"]: (row["state"], row["attempts"]) for row in page}
            if before is not None:
                for row in reversed(page):
                    if before.get(row["req_id"]) != now[row["req_id"]]:
                        _print_line(row, printing)
            before = now
            time.sleep(TAIL_S)


def _print_line(row: Answer, printing: OutputOptions) -> None:
    if printing.as_json:
        print_json(row)
        return
    lane = f" waits for {row['lane']}" if row["lane"] else ""
    error = f" ({row['error']})" if row["error"] else ""
    print(
        f"{row['updated_at']}  {row['req_id']}  user {row['user_id']}  {row['flow']}"
        f"  {row['amount']} {row['asset']}  {row['state']}{lane}{error}",
        flush=True,
    )


def stuck(chosen: StuckOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """List transfers that have not ended after some time."""
    with access.client("auditor") as client:
        page = client.search(stuck_s=chosen.seconds, limit=PAGE)
    if printing.as_json:
        print_json(page)
    elif page["transfers"]:
        print_table(COLUMNS, page["transfers"])
    else:
        print(f"no transfer has been open for more than {chosen.seconds} s")


def retry(which: TransferChoice, access: ApiOptions, printing: OutputOptions) -> None:
    """Retry a waiting transfer now."""
    with access.client("operator") as client:
        transfer = client.retry(which.id)
    id_ = transfer["req_id"]
    printing.show(transfer, f"{id_} is retried; see `tidegate show {id_}`")


def resolve(
    which: TransferChoice, proposal: ResolveOptions, access: ApiOptions, printing: OutputOptions
) -> None:
    """Propose the answer of a stuck operation; a second person must confirm it."""
    pairs = [pair.partition("=") for pair in proposal.evidence]
    if not all(name and equals and value for name, equals, value in pairs):
        raise CommandError("give evidence as NAME=VALUE, such as --evidence ticket=4711", 2)
    with access.client("operator", proposal.name) as client:
        version = client.history(which.id)["transfer"]["version"]
        resolution = {
            "version": version,
            "answer": proposal.answer.value,
            "reason": proposal.reason,
            "evidence": {name: value for name, _, value in pairs},
        }
        reply = client.resolve(which.id, resolution)
    number = reply["resolution"]
    printing.show(
        reply, f"proposal {number} recorded: a second person runs `tidegate confirm {number}`"
    )


def confirm(chosen: ConfirmOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Confirm the proposal of another person, made with `tidegate resolve`."""
    with access.client("approver", chosen.name) as client:
        reply = client.confirm(str(chosen.number))
    transfer = reply["transfer"]
    printing.show(reply, f"{transfer['req_id']}: {reply['outcome']}, now {transfer['state']}")


def halt(chosen: ReasonOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Stop all transfers: refuse new ones, and leave open ones in their state."""
    with access.client("operator") as client:
        reply = client.halt(chosen.reason)
    number = reply["halt"]
    printing.show(reply, f"halt {number}; end it with `tidegate resume REASON --halt {number}`")


def resume(chosen: ResumeOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """End the halts given by --halt, or all; transfers resume when no halt is left."""
    with access.client("operator") as client:
        reply = client.resume(chosen.reason, chosen.halt or None)
    if printing.as_json:
        print_json(reply)
        return
    for ended in reply["ended"]:
        print(f"ended {_halt_line(ended)}")
    for left in reply["halts"]:
        print(f"still halted: {_halt_line(left)}")
    print("halted" if reply["halted"] else "resumed")


def _halt_line(halt: Answer) -> str:
    return f"halt {halt['id']} by {halt['by']} at {halt['at']}: {halt['reason']}"


def audit(access: ApiOptions, printing: OutputOptions) -> None:
    """Audit all books in full; exit with 0 if they agree and 1 if they do not."""
    with access.client("auditor") as client:
        report = watched_audit(client)
    if printing.as_json:
        print_json(report)
    else:
        print_books(report)
    if not report["ok"]:
        if printing.as_json:
            raise typer.Exit(1)
        raise CommandError(
            "the books do not agree: read `books_disagree` in docs/operations.md before you resume"
        )


def print_books(report: Answer) -> None:
    assets = report["assets"].items()
    print_table(BOOKS, [{"asset": code, **sums} for code, sums in assets])
    for violation in report.get("violations", ()):
        print(f"violation: {violation}")
    halted = "; transfers are halted" if report["halted"] else ""
    print(("the books agree" if report["ok"] else "the books do not agree") + halted)


def flows(printing: OutputOptions) -> None:
    """Print every flow as a Mermaid diagram."""
    diagrams = {flow.name: flow.mermaid() for flow in FLOWS.values()}
    if printing.as_json:
        print_json(diagrams)
        return
    for name, diagram in diagrams.items():
        print(f"# {name}\n{diagram}")
