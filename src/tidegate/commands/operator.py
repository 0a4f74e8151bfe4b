"""The commands of those who answer for the money: look, retry, halt, resume, audit."""

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
    reason: Annotated[str, typer.Argument(metavar="REASON", help="For the record.")]


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    reason: Annotated[str, typer.Argument(metavar="REASON", help="For the record.")]
    halt: Annotated[
        list[int] | None,
        typer.Option("--halt", help="The number of a halt; may be given several times."),
    ] = None


class ProposedAnswer(StrEnum):
    """What people may say: it happened, it did not, or it goes to the owner's suspense book."""

    DONE = "done"
    REJECTED = "rejected"
    SUSPENSE = "suspense"


Name = Annotated[str | None, typer.Option("--as", help="Who says so; you, if not given.")]


@dataclass(frozen=True, slots=True)
class ResolveOptions:
    answer: Annotated[ProposedAnswer, typer.Option(help="What became of the open question.")]
    reason: Annotated[str, typer.Option(help="For the record.")]
    evidence: Annotated[list[str], typer.Option(help="NAME=VALUE; may be given several times.")]
    name: Name = None


@dataclass(frozen=True, slots=True)
class ConfirmOptions:
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="As resolve said.")]
    name: Name = None


@dataclass(frozen=True, slots=True)
class StuckOptions:
    seconds: Annotated[int, typer.Option(min=0, help="Not ended after so long.")] = 60


@dataclass(frozen=True, slots=True)
class SearchOptions:
    user: Annotated[int | None, typer.Option(min=1, help="Only this owner's.")] = None
    flow: Annotated[str | None, typer.Option(help="Only of this flow.")] = None


def show(which: TransferChoice, access: ApiOptions, printing: OutputOptions) -> None:
    """Tell the life of one transfer: every question, every answer, every attempt."""
    with access.client("auditor") as client:
        life = client.history(which.id)
    if printing.as_json:
        print_json(life)
    else:
        print_timeline(life)


def tail(seen: SearchOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Show transfers as they move, until Ctrl-C."""
    known: dict[str, tuple[str, int]] | None = None
    with access.client("auditor") as client:
        while True:
            page = client.search(owner=seen.user, flow=seen.flow, limit=PAGE)["transfers"]
            standing = {each["req_id"]: (each["state"], each["attempts"]) for each in page}
            if known is not None:
                for each in reversed(page):
                    if known.get(each["req_id"]) != standing[each["req_id"]]:
                        _print_line(each, printing)
            known = standing
            time.sleep(TAIL_S)


def _print_line(each: Answer, printing: OutputOptions) -> None:
    if printing.as_json:
        print_json(each)
        return
    waits = f" waits for {each['lane']}" if each["lane"] else ""
    why = f" ({each['error']})" if each["error"] else ""
    print(
        f"{each['updated_at']}  {each['req_id']}  user {each['user_id']}  {each['flow']}"
        f"  {each['amount']} {each['asset']}  {each['state']}{waits}{why}",
        flush=True,
    )


def stuck(late: StuckOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """List transfers that have not ended in time."""
    with access.client("auditor") as client:
        found = client.search(stuck_s=late.seconds, limit=PAGE)
    if printing.as_json:
        print_json(found)
    elif found["transfers"]:
        print_table(COLUMNS, found["transfers"])
    else:
        print(f"nothing is older than {late.seconds} s and not at its end")


def retry(which: TransferChoice, access: ApiOptions, printing: OutputOptions) -> None:
    """Ask a waiting transfer's question again now."""
    with access.client("operator") as client:
        made = client.retry(which.id)
    id_ = made["req_id"]
    printing.tell(made, f"{id_} is asked again; see `tidegate show {id_}`")


def resolve(
    which: TransferChoice, verdict: ResolveOptions, access: ApiOptions, printing: OutputOptions
) -> None:
    """Say what became of a question that stays open; a second person confirms it."""
    pairs = [pair.partition("=") for pair in verdict.evidence]
    if not all(name and equals and value for name, equals, value in pairs):
        raise CommandError("evidence is given as NAME=VALUE, such as --evidence ticket=4711", 2)
    with access.client("operator", verdict.name) as client:
        version = client.history(which.id)["transfer"]["version"]
        resolution = {
            "version": version,
            "answer": verdict.answer.value,
            "reason": verdict.reason,
            "evidence": {name: value for name, _, value in pairs},
        }
        made = client.resolve(which.id, resolution)
    number = made["resolution"]
    printing.tell(made, f"proposed as {number}: a second person runs `tidegate confirm {number}`")


def confirm(second: ConfirmOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Confirm, as the second person, what another has proposed by `tidegate resolve`."""
    with access.client("approver", second.name) as client:
        made = client.confirm(str(second.number))
    transfer = made["transfer"]
    printing.tell(made, f"{transfer['req_id']}: {made['outcome']}, now {transfer['state']}")


def halt(why: ReasonOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """Stop all money: new transfers are refused, running ones stay where they are."""
    with access.client("operator") as client:
        made = client.halt(why.reason)
    number = made["halt"]
    printing.tell(made, f"halt {number}; end it with `tidegate resume REASON --halt {number}`")


def resume(why: ResumeOptions, access: ApiOptions, printing: OutputOptions) -> None:
    """End the halts named by --halt, or all: money moves again when none is left."""
    with access.client("operator") as client:
        made = client.resume(why.reason, why.halt or None)
    if printing.as_json:
        print_json(made)
        return
    for ended in made["ended"]:
        print(f"ended {_told(ended)}")
    for left in made["halts"]:
        print(f"still halted: {_told(left)}")
    print("halted" if made["halted"] else "resumed")


def _told(halt: Answer) -> str:
    return f"halt {halt['id']} by {halt['by']} at {halt['at']}: {halt['reason']}"


def audit(access: ApiOptions, printing: OutputOptions) -> None:
    """Add up all books in full: exits 0 if they agree and 1 if they do not."""
    with access.client("auditor") as client:
        report = watched_audit(client)
    if printing.as_json:
        print_json(report)
    else:
        print_books(report)
    if not report["ok"]:
        if printing.as_json:
            raise typer.Exit(1)
        raise CommandError("the books do not agree: see docs/operations.md before you resume")


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
