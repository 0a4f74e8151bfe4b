"""Situations with which several tests start."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from ulid import ULID

from tests.acceptance.rig import USDT, Stack, User
from tidegate.core.answers import Done
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.money import MAX_AMOUNT
from tidegate.core.transfer import Question
from tidegate.engine.gate import CORE
from tidegate.systems.trading import TradingCoreClient

CID = "victim"


def killed_at(stack: Stack, moment: str, direction: str, **more: object) -> User:
    """A user with 100 in both accounts, whose API died during a transfer of 10.

    `closed` names an account that is disabled before. All other options are settings of the API.
    """
    closed = more.pop("closed", None)
    api = stack.start_api(moment, **more)
    user = stack.user(funding=100, spot=100)
    if closed is not None:
        user.set_status(str(closed), "DISABLED")
    api.arm()
    user.move_into_death(direction, "10", CID)
    api.dies(moment)
    return user


def compensating(stack: Stack) -> tuple[User, str]:
    """FUNDING has refused, SPOT must be refunded, and no API runs."""
    moment = "after record of COMPENSATING"
    user = killed_at(stack, moment, "out", closed="FUNDING")
    [(id_, state, _)] = user.transfers()
    assert state == "COMPENSATING"
    user.has_in_flight(100, 90, 10)
    return user, str(ULID.from_uuid(id_))


@contextmanager
def crowded_out(user: User) -> Iterator[None]:
    """Fill the user's SPOT account, so that it cannot be credited."""
    party, [_, held] = Party(CORE, "SPOT", user.owner), user.held()
    much = MAX_AMOUNT - held

    def asking(verb: Verb) -> None:
        question = Question(uuid4(), 0, verb, party, USDT, much)

        async def ask(core: TradingCoreClient) -> None:
            [answer] = await core.ask([question])
            assert isinstance(answer, Done), answer

        user.stack.ask_core(ask)

    asking(Verb.CREDIT)
    yield
    asking(Verb.DEBIT)
