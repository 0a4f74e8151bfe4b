"""A flow and a system of your own: a game pays prizes from its ledger to a card network.

The network is remote: it may answer late, twice or not at all. It stores its answer under the key
of each question. Tidegate requires nothing else.
"""

import asyncio
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from uuid import UUID

import tidegate as tg
from tidegate import Answer, Ask, Done, End, Flow, Party, Place, Question, Rejected, Setup, Verb


class Prize(StrEnum):
    RESERVING = "RESERVING"
    PAYING = "PAYING"
    RETURNING = "RETURNING"
    PAID = "PAID"
    DENIED = "DENIED"
    RETURNED = "RETURNED"


PRIZE = Flow(
    "prize",
    first=Prize.RESERVING,
    rows={
        Prize.RESERVING: Ask(Place.SOURCE, "source", Verb.DEBIT, Prize.PAYING, Prize.DENIED),
        Prize.PAYING: Ask(Place.IN_FLIGHT, "target", Verb.CREDIT, Prize.PAID, Prize.RETURNING),
        Prize.RETURNING: Ask(Place.IN_FLIGHT, "source", Verb.REFUND, Prize.RETURNED),
        Prize.PAID: End(Place.TARGET),
        Prize.DENIED: End(Place.SOURCE),
        Prize.RETURNED: End(Place.SOURCE),
    },
)


class CardNetwork:
    name, reversible = "cards", False

    def __init__(self) -> None:
        self.answers: dict[tuple[UUID, int], Answer] = {}

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        answers: list[Answer] = []
        for q in questions:
            first_time = (q.transfer_id, q.version) not in self.answers
            answer = Rejected("CARD_EXPIRED") if q.party.owner == 13 else Done()
            stored = self.answers.setdefault((q.transfer_id, q.version), answer)
            answers.append(tg.Unknown("no reply yet") if first_time else stored)
        return answers


async def pay(setup: Setup) -> None:
    async with tg.open_gate(setup) as gate:
        for player in (7, 13):
            await gate.deposit(tg.ExternalTransfer("FUNDING", "POINT", "100", cid="start"), player)
            parties = {
                "source": Party("ledger", "FUNDING", player),
                "target": Party("cards", "visa", player),
            }
            prize = tg.Request(player, "prize", parties, asset_id=6, amount=40, cid="prize-1")
            reply = await gate.engine.transfer(prize, wait_s=10)
            assert isinstance(reply, tg.Receipt), reply
            print(f"player {player}: {reply.transfer.state} after {reply.transfer.retries} retries")


def main(directory: Path) -> None:
    with tg.EmbeddedPostgres(directory) as server:
        tg.migrate(server.url(), "tidegate_store", tg.all_flows(PRIZE))
        asyncio.run(pay(Setup(server.url(), systems=(CardNetwork(),), flows=(PRIZE,))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
