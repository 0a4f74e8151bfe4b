"""What may have happened to the money of a transfer in each state: read off the flow's table."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tidegate.core.flow import ACTIONS, UNDOES, Ask, Edge, Flow, Pass
from tidegate.core.kind import Transfer

# The effects that a transfer has had, sorted, each named as the table names it: "source.debit".
Effects: TypeAlias = tuple[str, ...]


# What a verb adds to available and held together, in units of the amount.
SIGNS = {"debit": -1, "credit": 1, "refund": 1, "hold": 0, "capture": -1, "release": 0}


def label(role: str, verb: str) -> str:
    return f"{role}.{verb}"


FEE, PAID = label("fees", "credit"), label("target", "credit")


def expected(transfer: Transfer, account: tuple[str, int, str, int], verb: str) -> tuple[str, int]:
    """The effect that a verb at an account is, and what it must add to it; 0 at a stranger's."""
    owned, kind = account[:3], transfer.kind
    role = ""
    for seat, system, book, other in kind.party_templates:
        if (system, transfer.owner if other is None else other, book) == owned:
            role = seat
            break
    effect, due = label(role, verb), SIGNS[verb] * transfer.amount if role else 0
    if effect == FEE:
        return effect, kind.fee
    return effect, due - kind.fee if effect == PAID else due


def same(before: Transfer, after: Transfer) -> bool:
    """Whether what is fixed at its creation is still what it was, and so are its parties."""
    if (before.owner, before.amount) != (after.owner, after.amount):
        return False
    one, other = before.kind, after.kind
    if (one.flow, one.asset_id) != (other.flow, other.asset_id):
        return False
    # The same seats of the same owner are the same parties. Others may be so, too.
    return one.party_templates == other.party_templates or before.parties == after.parties


def allowed(flow: Flow) -> Mapping[str, frozenset[Effects]]:
    """For each state: what has happened on the way to it, and what it may be asking for now.

    A question that is open may have been carried out already: nobody knows before the answer is
    recorded. Everything else is decided.
    """
    arriving: dict[str, set[Effects]] = {str(state): set() for state in flow.rows}
    arriving[str(flow.first)].add(())
    most = sum(isinstance(row, Ask) for row in flow.rows.values())
    grown = True
    while grown:
        before = sum(map(len, arriving.values()))
        for state, row in flow.rows.items():
            for effects in list(arriving[str(state)]):
                match row:
                    case Pass():
                        arriving[str(row.to)].add(effects)
                    case Ask():
                        if len(effects) < most:
                            arriving[str(row.done)].add(_with(effects, row))
                        if row.rejected is not None:
                            arriving[str(row.rejected)].add(effects)
        grown = sum(map(len, arriving.values())) > before
    return {
        state: frozenset(found | {_with(e, row) for e in found if isinstance(row, Ask)})
        for state, found in arriving.items()
        for row in [flow.row(state)]
    }


def _with(effects: Effects, ask: Ask) -> Effects:
    if ask.verb not in ACTIONS:
        return effects  # It moves nothing, so that there is nothing to see.
    return tuple(sorted((*effects, label(ask.role, ask.verb))))


def reachable(flow: Flow) -> Iterator[Edge]:
    """The answers that the history of a flow can come to hold.

    A «no» stays where it is only if the table has no column for it, or if the column leads to an
    undo that its system cannot make. The first question is asked again under another version only
    after such a «no», or where the table leads back to it.
    """
    opening = flow.arrive(flow.first)[-1]
    returns = any(to == opening for _, why, to in flow.edges() if why)
    for edge in flow.answers():
        state = edge.path[-1]
        asked = edge.path[len(flow.arrive(flow.first)) - 1] if edge.first else edge.path[0]
        stays = edge.answer == "rejected" and state == asked
        if stays and not insists(flow, asked):
            continue
        if asked == opening and not edge.first and not (insists(flow, opening) or returns):
            continue
        yield edge


def insists(flow: Flow, state: str) -> bool:
    ask = flow.ask(state)
    assert ask is not None
    if ask.rejected is None:
        return True
    after = flow.ask(flow.arrive(ask.rejected)[-1])
    return after is not None and after.verb in UNDOES


def plain(edge: Edge) -> Edge:
    """The same with texts for members of enumerations, as the history has it."""
    return Edge(edge.first, tuple(map(str, edge.path)), str(edge.verb), edge.answer)


class FlowEffects(NamedTuple):
    """What a flow allows."""

    flow: Flow
    effects: Mapping[str, frozenset[Effects]]
    edges: frozenset[Edge]


_LAWS: dict[int, FlowEffects] = {}  # By the identity of the flow, which its laws keep alive.


def flow_effects_of(flow: Flow) -> FlowEffects:
    """Worked out once, and not for every seed."""
    if id(flow) not in _LAWS:
        _LAWS[id(flow)] = FlowEffects(flow, allowed(flow), frozenset(map(plain, flow.answers())))
    return _LAWS[id(flow)]
