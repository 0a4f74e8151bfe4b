"""Health and metrics: who halted and why, and for how long not everything was audited."""

import re
from datetime import UTC, datetime, timedelta

import psycopg

from tests.conftest import SCHEMA
from tests.service.rig import Front, Play, token

FULL_AUDIT = re.compile(r"^tidegate_full_audit_age_seconds (\S+)$", re.MULTILINE)


async def full_audit_age_s(front: Front) -> float:
    [age_s] = FULL_AUDIT.findall((await front.call("GET", "/metrics")).body)
    return float(age_s)


def test_the_metrics_say_for_how_long_not_everything_was_audited(play: Play, database: str) -> None:
    async def scene(front: Front) -> None:
        with psycopg.connect(
            database, autocommit=True, options=f"-c search_path={SCHEMA}"
        ) as connection:
            connection.execute("UPDATE audit_sweep SET begun_at = now() - interval '3 hours'")
            assert 10_800 <= await full_audit_age_s(front) < 10_860, "none has ended yet"
            connection.execute("UPDATE audit_sweep SET verified_at = now() - interval '1 hour'")
            assert 3_600 <= await full_audit_age_s(front) < 3_660
            connection.execute("UPDATE audit_sweep SET verified_at = now()")
            assert 0 <= await full_audit_age_s(front) < 60

    play(scene)


def test_who_halted_and_why_is_told_to_operators_and_by_the_readiness(play: Play) -> None:
    async def scene(front: Front) -> None:
        nothing = {"halted": False, "halts": []}
        assert (await front.desk("GET", "/halts")).body == nothing
        well = await front.call("GET", "/readyz")
        assert (well.status, well.body) == (
            200,
            {"status": "ok", **nothing, "lanes": dict.fromkeys(front.gate.engine.lanes, "open")},
        )

        made = [
            await front.desk("POST", "/halt", {"reason": "a strange sum"}),
            await front.call(
                "POST",
                "/api/v1/operator/halt",
                {"reason": "a second cause"},
                token("otto", "operator"),
            ),
        ]
        [first, second] = [said.body["halt"] for said in made]
        listed = await front.desk("GET", "/halts")
        assert (listed.status, listed.body["halted"]) == (200, True)
        whole = [halt | {"at": None} for halt in listed.body["halts"]]
        assert whole == [
            {"id": first, "reason": "a strange sum", "by": "olga", "at": None},
            {"id": second, "reason": "a second cause", "by": "otto", "at": None},
        ]
        for halt in listed.body["halts"]:
            ago = datetime.now(UTC) - datetime.fromisoformat(halt["at"])
            assert timedelta(0) <= ago < timedelta(minutes=1)
        ready = await front.call("GET", "/readyz")
        assert ready.status == 503
        assert ready.body == {
            "status": "unavailable",
            "halted": True,
            "halts": listed.body["halts"],
            "lanes": well.body["lanes"],
        }

        await front.desk("POST", "/resume", {"reason": "it was right", "halts": [first]})
        left = (await front.desk("GET", "/halts")).body["halts"]
        assert [halt["id"] for halt in left] == [second], "the other cause is still there"
        assert (await front.call("GET", "/readyz")).body["halts"] == left
        await front.desk("POST", "/resume", {"reason": "and so was that"})
        assert (await front.desk("GET", "/halts")).body == nothing
        assert (await front.call("GET", "/readyz")).status == 200

    play(scene)
