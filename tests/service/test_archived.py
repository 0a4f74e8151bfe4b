"""What was archived is answered over HTTP as it was before."""

import asyncio
from typing import Any

from tests.conftest import SCHEMA
from tests.service.rig import ALICE, BOB, Front, Play, token
from tidegate.store.archive import ArchiveAges, archive

IN = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "10.5", "cid": "long ago"}
YEAR_S = 365 * 24 * 3600


async def read(front: Front, id_: str) -> list[Any]:
    alice, path = token(str(ALICE), "user"), "/api/v1/internal_transfer"
    answers = [
        await front.call("GET", f"{path}/{id_}", who=alice),
        await front.call("GET", path, who=alice),
        await front.desk("GET", f"/transfers/{id_}"),
        await front.desk("GET", f"/transfers?owner={ALICE}"),
        await front.call("GET", "/api/v1/balances", who=alice),
    ]
    assert [answer.status for answer in answers] == [200] * len(answers), answers
    stranger = await front.call("GET", f"{path}/{id_}", who=token(str(BOB), "user"))
    assert stranger.status == 404
    return [answer.body for answer in answers]


def test_nobody_sees_a_difference(play: Play, database: str) -> None:
    def put_away() -> int:
        return sum(b.transfers for b in archive(database, SCHEMA, ArchiveAges(0, YEAR_S)))

    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "100")
        made = await front.transfer(IN)
        assert made.status == 201
        id_ = made.body["req_id"]
        before = await read(front, id_)
        assert await asyncio.to_thread(put_away) == 2
        assert await read(front, id_) == before
        again = await front.transfer(IN)
        assert again.status == 200
        assert again.body == made.body | {"duplicate": True}
        retried = await front.desk("POST", f"/transfers/{id_}/retry")
        assert (retried.status, retried.body["code"]) == (400, "INVALID_REQUEST")
        assert await read(front, id_) == before

    play(scene)
