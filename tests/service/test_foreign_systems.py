"""Operators' requests about transfers whose system is only in another process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import psycopg
from ulid import ULID

from tests.conftest import SCHEMA
from tests.engine.rig import OWNER, Execute, Rig, made, request, rigged
from tests.service.rig import ApiClient, running_service, token
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
    return [Unknown("no answer")] * len(questions)


def run(
    database: str,
    directory: Path,
    flow: str,
    scenario: Callable[[Rig, ApiClient, Transfer], Awaitable[None]],
) -> None:
    """Another program has made a transfer with its own system and has stopped."""

    async def main() -> None:
        async with rigged("postgres", database) as rig:
            await rig.endow(1_000)
            rig.install(database, OWN)
            rig.outside.twist = silent
            async with rig.engine() as engine:
                like = request("in", 300)
                transfer = await made(
                    engine, Request(OWNER, flow, like.parties, like.asset_id, 300)
                )
            async with running_service(database, directory) as api:
                await scenario(rig, api, transfer)

    asyncio.run(main())


def executed(database: str, statement: str, transfer: Transfer) -> float | None:
    with psycopg.connect(
        database, autocommit=True, options=f"-c search_path={SCHEMA}"
    ) as connection:
        cursor = connection.execute(statement, (transfer.id,))
        return None if cursor.description is None else float(cursor.fetchall()[0][0])


def test_a_retry_releases_a_transfer_for_the_processes_that_have_its_system(
    database: str, tmp_path: Path
) -> None:
    async def scenario(rig: Rig, api: ApiClient, transfer: Transfer) -> None:
        executed(database, LATER, transfer)
        reply = await api.operator("POST", f"/transfers/{ULID.from_uuid(transfer.id)}/retry")
        assert reply.status == 202, reply
        assert reply.body["lane"] == "venue"
        due_s = executed(database, DUE_S, transfer)
        assert due_s is not None
        assert due_s <= 0
        rig.outside.twist = None
        async with rig.engine(2):
            [ended] = await rig.ended([transfer])
        assert ended.state == "COMMITTED"

    run(database, tmp_path, "own", scenario)


def proposed(transfer: Transfer) -> dict[str, object]:
    evidence = {"ticket": "OPS-17"}
    version = transfer.version
    return {"version": version, "answer": "rejected", "reason": "a test", "evidence": evidence}


def test_a_confirmation_names_the_system_that_this_process_does_not_have(
    database: str, tmp_path: Path
) -> None:
    async def scenario(_: Rig, api: ApiClient, transfer: Transfer) -> None:
        path = f"/transfers/{ULID.from_uuid(transfer.id)}/resolve"
        reply = await api.operator("POST", path, proposed(transfer))
        assert reply.status == 201
        path = f"/api/v1/operator/resolutions/{reply.body['resolution']}/confirm"
        reply = await api.call("POST", path, bearer=token("otto", "approver"))
        assert reply.status == 200
        assert reply.body["outcome"] == (
            "this process does not have the system venue; confirm at a process that does"
        )
        assert reply.body["transfer"]["version"] == transfer.version

    run(database, tmp_path, "internal_transfer", scenario)


def test_a_proposal_about_an_unknown_flow_is_refused_with_the_reason(
    database: str, tmp_path: Path
) -> None:
    async def scenario(_: Rig, api: ApiClient, transfer: Transfer) -> None:
        path = f"/transfers/{ULID.from_uuid(transfer.id)}/resolve"
        reply = await api.operator("POST", path, proposed(transfer))
        assert (reply.status, reply.body["code"]) == (400, "INVALID_REQUEST")
        assert reply.body["detail"] == (
            "this process does not know the flow own: propose at one that does"
        )

    run(database, tmp_path, "own", scenario)
