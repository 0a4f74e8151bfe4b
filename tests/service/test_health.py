"""Health and metrics: the halts with their reasons, and the age of the last full audit."""

import re
from datetime import UTC, datetime, timedelta

import psycopg

from tests.conftest import SCHEMA
from tests.service.rig import ApiClient, Run, token

FULL_AUDIT = re.compile(r"^tidegate_full_audit_age_seconds (\S+)$", re.MULTILINE)


async def full_audit_age_s(api: ApiClient) -> float:
    [age_s] = FULL_AUDIT.findall((await api.call("GET", "/metrics")).body)
    return float(age_s)


def test_the_metrics_report_the_age_of_the_last_full_audit(run: Run, database: str) -> None:
    async def scenario(api: ApiClient) -> None:
        with psycopg.connect(
            database, autocommit=True, options=f"-c search_path={SCHEMA}"
        ) as connection:
            connection.execute("UPDATE audit_sweep SET begun_at = now() - interval '3 hours'")
            assert 10_800 <= await full_audit_age_s(api) < 10_860, "the first one has not ended"
            connection.execute("UPDATE audit_sweep SET verified_at = now() - interval '1 hour'")
            assert 3_600 <= await full_audit_age_s(api) < 3_660
            connection.execute("UPDATE audit_sweep SET verified_at = now()")
            assert 0 <= await full_audit_age_s(api) < 60

    run(scenario)


def test_operators_and_the_readiness_see_each_halt_with_its_reason(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        no_halt = {"halted": False, "halts": []}
        assert (await api.operator("GET", "/halts")).body == no_halt
        healthy = await api.call("GET", "/readyz")
        assert (healthy.status, healthy.body) == (
            200,
            {"status": "ok", **no_halt, "lanes": dict.fromkeys(api.gate.engine.lanes, "open")},
        )

        created = [
            await api.operator("POST", "/halt", {"reason": "a wrong sum"}),
            await api.call(
                "POST",
                "/api/v1/operator/halt",
                {"reason": "a second reason"},
                token("otto", "operator"),
            ),
        ]
        [first, second] = [reply.body["halt"] for reply in created]
        listed = await api.operator("GET", "/halts")
        assert (listed.status, listed.body["halted"]) == (200, True)
        without_times = [halt | {"at": None} for halt in listed.body["halts"]]
        assert without_times == [
            {"id": first, "reason": "a wrong sum", "by": "olga", "at": None},
            {"id": second, "reason": "a second reason", "by": "otto", "at": None},
        ]
        for halt in listed.body["halts"]:
            ago = datetime.now(UTC) - datetime.fromisoformat(halt["at"])
            assert timedelta(0) <= ago < timedelta(minutes=1)
        readiness = await api.call("GET", "/readyz")
        assert readiness.status == 503
        assert readiness.body == {
            "status": "unavailable",
            "halted": True,
            "halts": listed.body["halts"],
            "lanes": healthy.body["lanes"],
        }

        await api.operator("POST", "/resume", {"reason": "the sum was right", "halts": [first]})
        remaining = (await api.operator("GET", "/halts")).body["halts"]
        assert [halt["id"] for halt in remaining] == [second], "the other halt is in force"
        assert (await api.call("GET", "/readyz")).body["halts"] == remaining
        await api.operator("POST", "/resume", {"reason": "fixed"})
        assert (await api.operator("GET", "/halts")).body == no_halt
        assert (await api.call("GET", "/readyz")).status == 200

    run(scenario)
