"""The effects on money that a transfer may have had in each state, derived from the flow table."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tidegate.core.flow import ACTIONS, UNDO_VERBS, Ask, Edge, Flow, Pass
from tidegate.core.kind import Transfer

# The effects that a transfer has had, sorted. Each is named by role and verb: "source.debit".
Effects: TypeAlias = tuple[str, ...]


# What a verb adds to the sum of available and held, in units of the amount.
SIGNS = {"debit": -1, "credit": 1, "refund": 1, "hold": 0, "capture": -1, "release": 0}


def label(role: str, verb: str) -> str:
    return f"{role}.{verb}"


FEE, PAID = label("fees", "credit"), label("target", "credit")


def expected(transfer: Transfer, account: tuple[str, int, str, int], verb: str) -> tuple[str, int]:
    """The effect of a verb at an account, and the amount that it must add there.

    The amount is 0 for an account that plays no role in the transfer.
    """
    owned, kind = account[:3], transfer.kind
    role = ""
    for party_role, system, book, owner in kind.party_templates:
        if (system, transfer.owner if owner is None else owner, book) == owned:
            role = party_role
            break
    effect, due = label(role, verb), SIGNS[verb] * transfer.amount if role else 0
    if effect == FEE:
        return effect, kind.fee
    return effect, due - kind.fee if effect == PAID else due


def is_same_transfer(before: Transfer, after: Transfer) -> bool:
    """Whether the values that are fixed at creation, parties included, are unchanged."""
    if (before.owner, before.amount) != (after.owner, after.amount):
        return False
    old, new = before.kind, after.kind
    if (old.flow, old.asset_id) != (new.flow, new.asset_id):
        return False
    # Equal templates of the same owner mean equal parties. Other templates may mean the same, too.
    return old.party_templates == new.party_templates or before.parties == after.parties


def allowed(flow: Flow) -> Mapping[str, frozenset[Effects]]:
    """For each state: the effects on every path to it, with and without its own open question.

    An open question may already be carried out: this is unknown until the answer is recorded.
    Everything before it is decided.
    """
    arriving: dict[str, set[Effects]] = {str(state): set() for state in flow.rows}
    arriving[str(flow.first)].add(())
    max_effects = sum(isinstance(row, Ask) for row in flow.rows.values())
    changed = True
    while changed:
        before = sum(map(len, arriving.values()))
        for state, row in flow.rows.items():
            for effects in list(arriving[str(state)]):
                match row:
                    case Pass():
                        arriving[str(row.to)].add(effects)
                    case Ask():
                        if len(effects) < max_effects:
                            arriving[str(row.done)].add(_with_effect(effects, row))
                        if row.rejected is not None:
                            arriving[str(row.rejected)].add(effects)
        changed = sum(map(len, arriving.values())) > before
    return {
        state: frozenset(found | {_with_effect(e, row) for e in found if isinstance(row, Ask)})
        for state, found in arriving.items()
        for row in [flow.row(state)]
    }


def _with_effect(effects: Effects, ask: Ask) -> Effects:
    if ask.verb not in ACTIONS:
        return effects  # This verb moves nothing, so it has no effect.
    return tuple(sorted((*effects, label(ask.role, ask.verb))))


def reachable(flow: Flow) -> Iterator[Edge]:
    """The answers that the history of a flow can contain.

    A Rejected leaves the state unchanged only if the table has no column for it, or if the column
    leads to an undo that the system cannot do. The first question is asked again under another
    version only after such a Rejected, or if the table leads back to it.
    """
    first_state = flow.arrive(flow.first)[-1]
    returns = any(to == first_state for _, answer, to in flow.edges() if answer)
    for edge in flow.answers():
        state = edge.path[-1]
        asking_state = edge.path[len(flow.arrive(flow.first)) - 1] if edge.first else edge.path[0]
        stays = edge.answer == "rejected" and state == asking_state
        if stays and not may_stay_rejected(flow, asking_state):
            continue
        asked_again = asking_state == first_state and not edge.first
        if asked_again and not (may_stay_rejected(flow, first_state) or returns):
            continue
        yield edge


def may_stay_rejected(flow: Flow, state: str) -> bool:
    """Whether a Rejected may leave a transfer in this state, to be asked again."""
    ask = flow.ask(state)
    assert ask is not None
    if ask.rejected is None:
        return True
    after = flow.ask(flow.arrive(ask.rejected)[-1])
    return after is not None and after.verb in UNDO_VERBS


def plain(edge: Edge) -> Edge:
    """The edge with strings in place of enum members, as the history stores it."""
    return Edge(edge.first, tuple(map(str, edge.path)), str(edge.verb), edge.answer)


class FlowEffects(NamedTuple):
    """The effects and edges that a flow allows."""

    flow: Flow
    effects: Mapping[str, frozenset[Effects]]
    edges: frozenset[Edge]


# By id() of the flow. The value refers to the flow, so that the id stays in use.
_FLOW_EFFECTS: dict[int, FlowEffects] = {}


def flow_effects_of(flow: Flow) -> FlowEffects:
    """The effects of a flow, computed once per process."""
    if id(flow) not in _FLOW_EFFECTS:
        _FLOW_EFFECTS[id(flow)] = FlowEffects(
            flow, allowed(flow), frozenset(map(plain, flow.answers()))
        )
    return _FLOW_EFFECTS[id(flow)]
