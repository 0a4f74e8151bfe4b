"""The history of one transfer as text for people."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from tidegate.client import Answer
from tidegate.commands.console import console
from tidegate.core.transfer import SUSPENSE
from tidegate.flows import FLOWS

COLOURS = {"done": "green", "rejected": "red", "COMMITTED": "green", "SETTLED": "green"}


def print_timeline(life: Answer) -> None:
    out = console()
    for line, colour in timeline(life):
        out.print(Text(line, style=colour), soft_wrap=True)


def timeline(life: Answer) -> Iterator[tuple[str, str]]:
    """Yield lines with their colours: each answer and attempt with its time, then the state."""
    transfer = life["transfer"]
    source, target = (_party(transfer, role) for role in ("source", "target"))
    money = f"{transfer['amount']} {transfer['asset']}  {source} → {target}"
    yield f"{transfer['req_id']}  {transfer['flow']}  user {transfer['user_id']}  {money}", "bold"
    created = transfer["created_at"]
    yield f"  {_clock(created)}  requested, cid {transfer['cid'] or '—'}", ""
    for _, line, colour in sorted([*_answers(life), *_attempts(life)], key=lambda e: e[0]):
        yield line, colour
    yield _last_line(transfer)


def _answers(life: Answer) -> Iterator[tuple[tuple[str, int, int], str, str]]:
    for entry in life["history"]:
        answer = str(entry["answer"]).lower()
        path = entry["path"]
        steps = " → ".join(path if isinstance(path, list) else str(path).split())
        reason = f" ({entry['reason']})" if entry.get("reason") else ""
        actor = f", by {entry['actor']}" if entry.get("actor") not in (None, "", "engine") else ""
        party = _party(life["transfer"], _role(life["transfer"], entry))
        text = f"{party} {entry['verb']}: {answer}{reason}{actor}"
        line = f"  {_clock(entry['at'])}  {text:<28}  {steps}"
        yield (entry["at"], entry["version"], 1), line, COLOURS.get(answer, "")


def _role(transfer: Answer, entry: Answer) -> str:
    """Return the role that was asked: the flow's, or suspense if people redirected a refund."""
    if entry["verb"] == "refund":
        moved = entry["answer"] == "done" and SUSPENSE in transfer["parties"]
        return SUSPENSE if moved else "source"
    flow = FLOWS.get(transfer["flow"])
    ask = None if flow is None else flow.first_ask(entry["path"])
    usual = "target" if entry["verb"] == "credit" else "source"
    return usual if ask is None else ask.role


def _attempts(life: Answer) -> Iterator[tuple[tuple[str, int, int], str, str]]:
    """Yield the attempts without an answer. Those with one are in the history."""
    for attempt in life["attempts"]:
        line = f"  {_clock(attempt['at'])}  no answer: {attempt['reason']}; will be retried"
        yield (attempt["at"], attempt["version"], 0), line, "yellow"


def _last_line(transfer: Mapping[str, Any]) -> tuple[str, str]:
    state, lane = transfer["state"], transfer["lane"]
    if lane is None:
        error = f" ({transfer['error']})" if transfer.get("error") else ""
        return f"  {_clock(transfer['updated_at'])}  {state}{error}", COLOURS.get(state, "red")
    text = f"{state}: waits for {lane}, asked {transfer['attempts']} times"
    text += f", {transfer['retries']} retries" if transfer.get("retries") else ""
    text += f" ({transfer['error']})" if transfer.get("error") else ""
    alert = "; an alert was sent" if transfer.get("paged") else ""
    return f"  {_clock(transfer['updated_at'])}  {text}{alert}", "yellow"


def _party(transfer: Mapping[str, Any], role: str) -> str:
    return str(transfer["parties"].get(role, "—")).split("/")[1].upper()


def _clock(at: str) -> str:
    """Return the time of day only: the day follows from the transfer's id."""
    return at.partition("T")[2].removesuffix("Z")
