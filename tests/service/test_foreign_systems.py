"""Operators and transfers of a system that only another process has."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import psycopg
from ulid import ULID

from tests.conftest import SCHEMA
from tests.engine.rig import OWNER, Execute, Rig, made, request, rigged
from tests.service.rig import Front, fronted, token
from tidegate.core.answers import Answer, Unknown
from tidegate.core.flow import Flow
from tidegate.core.kind import Transfer
from tidegate.core.request import Request
from tidegate.core.transfer import Question
from tidegate.flows import FLOWS

KNOWN = FLOWS["internal_transfer"]
OWN = Flow("own", first=KNOWN.first, rows=KNOWN.rows)
DUE_S = "SELECT extract(epoch FROM due_at - now())::float8 FROM transfers WHERE id = %s"
LATER = "UPDATE transfers SET due_at = now() + interval '40 seconds' WHERE id = %s"


async def silent(questions: Sequence[Question], _: Execute) -> Sequence[Answer]:
    return [Unknown("no word")] * len(questions)


def play(
    database: str,
    directory: Path,
    flow: str,
    scene: Callable[[Rig, Front, Transfer], Awaitable[None]],
) -> None:
    """A program of its own has made a transfer with its system, and has stopped since."""

    async def whole() -> None:
        async with rigged("postgres", database) as rig:
            await rig.endow(1_000)
            rig.install(database, OWN)
            rig.outside.twist = silent
            async with rig.engine() as engine:
                like = request("in", 300)
                transfer = await made(
                    engine, Request(OWNER, flow, like.parties, like.asset_id, 300)
                )
            async with fronted(database, directory) as front:
                await scene(rig, front, transfer)

    asyncio.run(whole())


def asked(database: str, statement: str, transfer: Transfer) -> float | None:
    with psycopg.connect(
        database, autocommit=True, options=f"-c search_path={SCHEMA}"
    ) as connection:
        cursor = connection.execute(statement, (transfer.id,))
        return None if cursor.description is None else float(cursor.fetchall()[0][0])


def test_a_transfer_of_a_system_that_is_not_here_is_released_for_those_who_have_it(
    database: str, tmp_path: Path
) -> None:
    async def scene(rig: Rig, front: Front, transfer: Transfer) -> None:
        asked(database, LATER, transfer)
        said = await front.desk("POST", f"/transfers/{ULID.from_uuid(transfer.id)}/retry")
        assert said.status == 202, said
        assert said.body["lane"] == "venue"
        due_s = asked(database, DUE_S, transfer)
        assert due_s is not None
        assert due_s <= 0
        rig.outside.twist = None
        async with rig.engine(2):
            [ended] = await rig.ended([transfer])
        assert ended.state == "COMMITTED"

    play(database, tmp_path, "own", scene)


def proposed(transfer: Transfer) -> dict[str, object]:
    evidence = {"ticket": "OPS-17"}
    version = transfer.version
    return {"version": version, "answer": "rejected", "reason": "by hand", "evidence": evidence}


def test_a_resolution_names_the_system_that_is_not_here(database: str, tmp_path: Path) -> None:
    async def scene(_: Rig, front: Front, transfer: Transfer) -> None:
        path = f"/transfers/{ULID.from_uuid(transfer.id)}/resolve"
        said = await front.desk("POST", path, proposed(transfer))
        assert said.status == 201
        path = f"/api/v1/operator/resolutions/{said.body['resolution']}/confirm"
        said = await front.call("POST", path, who=token("otto", "approver"))
        assert said.status == 200
        assert said.body["outcome"] == (
            "this process does not have the system venue: confirm at one that does"
        )
        assert said.body["transfer"]["version"] == transfer.version

    play(database, tmp_path, "internal_transfer", scene)


def test_a_proposal_about_a_flow_that_is_not_here_is_told_why_it_is_refused(
    database: str, tmp_path: Path
) -> None:
    async def scene(_: Rig, front: Front, transfer: Transfer) -> None:
        path = f"/transfers/{ULID.from_uuid(transfer.id)}/resolve"
        said = await front.desk("POST", path, proposed(transfer))
        assert (said.status, said.body["code"]) == (400, "INVALID_REQUEST")
        assert said.body["detail"] == (
            "this process does not know the flow own: propose at one that does"
        )

    play(database, tmp_path, "own", scene)
