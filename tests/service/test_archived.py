"""The API answers for archived transfers as it did before."""

import asyncio
from typing import Any

from tests.conftest import SCHEMA
from tests.service.rig import ALICE, BOB, ApiClient, Run, token
from tidegate.store.archive import ArchiveAges, archive

IN = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "10.5", "cid": "long ago"}
YEAR_S = 365 * 24 * 3600


async def read(api: ApiClient, id_: str) -> list[Any]:
    alice, path = token(str(ALICE), "user"), "/api/v1/internal_transfer"
    answers = [
        await api.call("GET", f"{path}/{id_}", bearer=alice),
        await api.call("GET", path, bearer=alice),
        await api.operator("GET", f"/transfers/{id_}"),
        await api.operator("GET", f"/transfers?owner={ALICE}"),
        await api.call("GET", "/api/v1/balances", bearer=alice),
    ]
    assert [answer.status for answer in answers] == [200] * len(answers), answers
    other_user = await api.call("GET", f"{path}/{id_}", bearer=token(str(BOB), "user"))
    assert other_user.status == 404
    return [answer.body for answer in answers]


def test_an_archived_transfer_looks_the_same_on_every_route(run: Run, database: str) -> None:
    def move_to_archive() -> int:
        return sum(b.transfers for b in archive(database, SCHEMA, ArchiveAges(0, YEAR_S)))

    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        created = await api.transfer(IN)
        assert created.status == 201
        id_ = created.body["req_id"]
        before = await read(api, id_)
        assert await asyncio.to_thread(move_to_archive) == 2
        assert await read(api, id_) == before
        again = await api.transfer(IN)
        assert again.status == 200
        assert again.body == created.body | {"duplicate": True}
        retried = await api.operator("POST", f"/transfers/{id_}/retry")
        assert (retried.status, retried.body["code"]) == (400, "INVALID_REQUEST")
        assert await read(api, id_) == before

    run(scenario)
