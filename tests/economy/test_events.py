"""The events on the channel `economy_events`, with their exact fields."""

from uuid import UUID

from tests.economy.rig import ANNA, BEN, CARA, GUILD, Play, ReceivedEvents, Rig, Row

SCENE = {"guild_id": GUILD, "initiator_id": ANNA}


def checked(id_: UUID, check: str, result: int, **facts: object) -> Row:
    return {
        "event_type": "transfer_check_result",
        "transfer_id": str(id_),
        "check_type": check,
        "result": result,
        **SCENE,
        "round": 1,
        **facts,
    }


def results(received: ReceivedEvents, id_: UUID) -> dict[str, Row]:
    events = received.events("transfer_check_result")
    return {e["check_type"]: e for e in events if e["transfer_id"] == str(id_)}


def test_a_transfer_has_events_from_its_checks_to_its_success(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        with rig.listening() as received:
            async with rig.engine():
                id_ = rig.insert(100)
                await rig.until(id_, "completed")
            events = received.events()
        transfer = {**SCENE, "transfer_id": str(id_), "target_id": BEN, "amount": 100}
        assert sorted(events[:3], key=lambda e: str(e["check_type"])) == [
            checked(id_, "balance", 1, balance=1_000, required=100),
            checked(id_, "cooldown", 1, throttled_until=None),
            checked(id_, "daily_limit", 1, total_today=0, attempted_amount=100, limit=500),
        ]
        assert events[3:] == [
            {"event_type": "transfer_check_approved", **transfer, "round": 1},
            {
                "event_type": "transaction_success",
                **transfer,
                "initiator_balance": 900,
                "target_balance": 1_100,
            },
        ]

    play(scene)


def test_large_amounts_are_exact_numbers(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("UPDATE economy.guild_settings SET daily_limit = 0")
        large = 2**62 + 1
        await rig.endow(large, CARA)
        with rig.listening() as received:
            async with rig.engine():
                await rig.until(rig.insert(large, initiator=CARA), "completed")
            [event] = received.events("transaction_success")
        assert (event["amount"], event["initiator_balance"]) == (large, 0)
        assert event["target_balance"] == large + 1_000

    play(scene)


def test_the_event_of_a_failed_check_contains_its_reason(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        with rig.listening() as received:
            async with rig.engine():
                first = rig.insert(2_000)
                await rig.when(first, lambda r: "daily_limit" in r["checks"])
                second = rig.insert(1)
                await rig.when(second, lambda r: "daily_limit" in r["checks"])
            of_first, of_second = results(received, first), results(received, second)
        assert of_first["balance"] == checked(first, "balance", 0, balance=1_000, required=2_000)
        limit = {"total_today": 0, "attempted_amount": 2_000, "limit": 500}
        assert of_first["daily_limit"] == checked(first, "daily_limit", 0, **limit)
        [row] = rig.rows(
            "SELECT to_jsonb(throttled_until) AS at FROM economy.throttles WHERE member_id = 1"
        )
        assert of_second["cooldown"] == checked(second, "cooldown", 0, throttled_until=row["at"])

    play(scene)


def denied(rig: Rig, received: ReceivedEvents, id_: UUID, reason: str, amount: int) -> None:
    assert received.events("transaction_denied") == [
        {
            "event_type": "transaction_denied",
            "reason": reason,
            "transfer_id": str(id_),
            **SCENE,
            "target_id": BEN,
            "amount": amount,
        }
    ]
    assert received.events("transaction_success") == []


def test_an_expired_transfer_is_denied_as_expired(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        with rig.listening() as received:
            async with rig.engine():
                id_ = rig.insert(5, expires_at="2020-01-01")
                await rig.until(id_, "rejected")
            denied(rig, received, id_, "transfer_checks_expired", 5)

    play(scene)


def test_a_transfer_is_denied_as_failed_after_ten_retries(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("UPDATE economy.guild_settings SET daily_limit = 0")
        id_ = rig.insert(5_000)
        with rig.listening() as received:
            async with rig.engine():
                for count in range(1, 11):
                    await rig.when(id_, lambda r, n=count: r["retry_count"] == n)  # type: ignore[misc]
                    rig.run("UPDATE transfers SET due_at = now() WHERE id = %s", id_)
                await rig.until(id_, "rejected")
            denied(rig, received, id_, "transfer_checks_failed", 5_000)
            assert len(received.events("transfer_check_result")) == 33

    play(scene)


def test_the_events_of_a_new_round_contain_its_number(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        id_ = rig.insert(100)
        await rig.approve(id_)
        rig.run(
            "UPDATE economy.throttles SET throttled_until = now() + interval '3 s'"
            " WHERE member_id = %s",
            ANNA,
        )
        with rig.listening() as received:
            async with rig.engine():
                row = await rig.when(id_, lambda r: r["round"] == 2)
                assert row["status"] == "checking"
                assert row["checks"] in ({}, {"balance": 1, "cooldown": 0, "daily_limit": 1})
                await rig.until(id_, "completed")
            rounds = {e["round"] for e in received.events("transfer_check_result")}
            assert rounds == {2}
            [approved] = received.events("transfer_check_approved")
            assert approved["round"] == 2

    play(scene)


def test_a_check_called_by_sql_returns_its_result_and_has_an_event(play: Play) -> None:
    """Checks may be called in any order and repeatedly: only the engine approves."""

    async def scene(rig: Rig) -> None:
        id_ = rig.insert(100)
        await rig.take(id_)
        with rig.listening() as received:
            for name in ("daily_limit", "balance", "cooldown", "balance"):
                [row] = rig.rows(f"SELECT economy.fn_check_transfer_{name}(%s) AS result", id_)
                assert row["result"] == 1
            order = [e["check_type"] for e in received.events()]
            assert order == ["daily_limit", "balance", "cooldown", "balance"]
        assert rig.pending(id_)["checks"] == {"balance": 1, "cooldown": 1, "daily_limit": 1}
        assert rig.pending(id_)["status"] == "checking"
        async with rig.engine():
            await rig.until(id_, "completed")
        with rig.listening() as received:
            rig.rows("SELECT economy.fn_check_transfer_balance(%s)", id_)
            assert received.events() == []

    play(scene)
