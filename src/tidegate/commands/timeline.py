"""The life of one transfer, as a person reads it."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from tidegate.client import Answer
from tidegate.commands.console import console
from tidegate.core.transfer import SUSPENSE
from tidegate.flows import FLOWS

COLOURS = {"done": "green", "rejected": "red", "COMMITTED": "green", "SETTLED": "green"}
SAYS = {"done": "said yes", "rejected": "said no"}


def print_timeline(life: Answer) -> None:
    out = console()
    for line, colour in timeline(life):
        out.print(Text(line, style=colour), soft_wrap=True)


def timeline(life: Answer) -> Iterator[tuple[str, str]]:
    """Lines and their colours: what was asked, what was answered, what it led to, and when."""
    transfer = life["transfer"]
    source, target = (_party(transfer, role) for role in ("source", "target"))
    what = f"{transfer['amount']} {transfer['asset']}  {source} → {target}"
    yield f"{transfer['req_id']}  {transfer['flow']}  user {transfer['user_id']}  {what}", "bold"
    began = transfer["created_at"]
    yield f"  {_clock(began)}  requested, cid {transfer['cid'] or '—'}", ""
    for _, line, colour in sorted([*_answers(life), *_attempts(life)], key=lambda e: e[0]):
        yield line, colour
    yield _standing(transfer)


def _answers(life: Answer) -> Iterator[tuple[tuple[str, int, int], str, str]]:
    for entry in life["history"]:
        said = str(entry["answer"]).lower()
        path = entry["path"]
        steps = " → ".join(path if isinstance(path, list) else str(path).split())
        why = f" ({entry['reason']})" if entry.get("reason") else ""
        who = f", by {entry['actor']}" if entry.get("actor") not in (None, "", "engine") else ""
        whom = _party(life["transfer"], _role(life["transfer"], entry))
        words = f"{whom} {entry['verb']}: {SAYS.get(said, said)}{why}{who}"
        line = f"  {_clock(entry['at'])}  {words:<28}  {steps}"
        yield (entry["at"], entry["version"], 1), line, COLOURS.get(said, "")


def _role(transfer: Answer, entry: Answer) -> str:
    """Who was asked: as the flow has it, but for a refund that people have re-pointed."""
    if entry["verb"] == "refund":
        moved = entry["answer"] == "done" and SUSPENSE in transfer["parties"]
        return SUSPENSE if moved else "source"
    flow = FLOWS.get(transfer["flow"])
    ask = None if flow is None else flow.asked(entry["path"])
    usual = "target" if entry["verb"] == "credit" else "source"
    return usual if ask is None else ask.role


def _attempts(life: Answer) -> Iterator[tuple[tuple[str, int, int], str, str]]:
    """Those that got no answer: the others are in the history."""
    for attempt in life["attempts"]:
        line = f"  {_clock(attempt['at'])}  no answer: {attempt['reason']}; it is asked again"
        yield (attempt["at"], attempt["version"], 0), line, "yellow"


def _standing(transfer: Mapping[str, Any]) -> tuple[str, str]:
    state, lane = transfer["state"], transfer["lane"]
    if lane is None:
        why = f" ({transfer['error']})" if transfer.get("error") else ""
        return f"  {_clock(transfer['updated_at'])}  {state}{why}", COLOURS.get(state, "red")
    waits = f"{state}: waits for {lane}, asked {transfer['attempts']} times"
    waits += f", {transfer['retries']} retries" if transfer.get("retries") else ""
    waits += f" ({transfer['error']})" if transfer.get("error") else ""
    called = "; a person was called" if transfer.get("paged") else ""
    return f"  {_clock(transfer['updated_at'])}  {waits}{called}", "yellow"


def _party(transfer: Mapping[str, Any], role: str) -> str:
    return str(transfer["parties"].get(role, "—")).split("/")[1].upper()


def _clock(at: str) -> str:
    """The time of day; the day is in the transfer's name."""
    return at.partition("T")[2].removesuffix("Z")
