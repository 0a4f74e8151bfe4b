"""Settings take effect: retries, limits, account types, rings, tokens."""

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest

import tidegate.background
from tidegate.background import BackgroundTask, BackgroundTasks
from tidegate.core.flow import Ask
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.flows import FLOWS
from tidegate.service.auth import TokenPolicy
from tidegate.service.keys import FixedKeys, issue, key_of_pem, new_keypair
from tidegate.serving import deny_revoked, setup_of, tuned, verifier
from tidegate.settings import Settings, read_settings
from tidegate.store.flow_checks import checksum


def asks(settings: Settings) -> dict[str, Ask]:
    flow = next(f for f in setup_of(settings).flows if f.name == "internal_transfer")
    return {str(state): row for state, row in flow.rows.items() if isinstance(row, Ask)}


def test_the_names_of_the_specifications_set_backoff_scan_and_thresholds() -> None:
    environ = {
        "DATABASE_URL": "postgresql://user@/database",
        "TIDEGATE_SCAN_INTERVAL_MS": "250",
        "TIDEGATE_RETRY_BACKOFF_MS": "2000",
        "TIDEGATE_ALERT_THRESHOLD": "7",
        "TIDEGATE_ALERT_AFTER_SECONDS": "120",
    }
    settings = read_settings({}, environ)
    setup = setup_of(settings)
    assert (setup.database, setup.scan_s) == ("postgresql://user@/database", 0.25)
    source = asks(settings)["SOURCE_PENDING"].retry
    assert (source.first_s, source.page_attempts, source.page_after_s) == (2.0, 7, 120.0)


def test_an_urgent_page_is_never_later_than_the_built_in_time() -> None:
    settings = Settings(database="d", alert_after_s=3_600.0)
    assert asks(settings)["TARGET_PENDING"].retry.page_after_s == 60.0
    assert asks(settings)["COMPENSATING"].retry.page_after_s == 60.0


def test_an_operator_may_set_any_time_for_other_pages() -> None:
    for seconds in (1.0, 299.0, 301.0, 3_600.0):
        settings = Settings(database="d", alert_after_s=seconds)
        assert asks(settings)["SOURCE_PENDING"].retry.page_after_s == seconds


def test_retry_settings_do_not_change_the_checksum_of_a_flow() -> None:
    for flow in FLOWS.values():
        assert checksum(tuned(flow, 9.0, 99, 999.0)) == checksum(flow)


def test_limits_apply_only_when_they_are_on() -> None:
    off = setup_of(Settings(database="d", transfers_per_day=5, daily_amounts={"USDT": "10"}))
    assert (off.transfers_per_day, off.daily_amounts) == (None, {})
    on = setup_of(
        Settings(database="d", rate_limits=True, transfers_per_day=5, daily_amounts={"USDT": "10"})
    )
    assert (on.transfers_per_day, on.daily_amounts) == (5, {"USDT": "10"})


def test_account_types_and_the_ring_size_are_set() -> None:
    setup = setup_of(Settings(database="d", accounts=("FUNDING", "SPOT", "MARGIN"), ring_size=50))
    assert (setup.accounts, setup.ring_size) == (frozenset({"FUNDING", "SPOT", "MARGIN"}), 50)


def accepts(settings: Settings, lifetime_s: float) -> bool:
    """Whether a token with this lifetime is accepted."""
    private, public = new_keypair()
    policy = TokenPolicy(issuer="tidegate", audience="tidegate", max_lifetime_s=lifetime_s)
    token = issue(private, "k", policy.claims("7", ["user"], time.time()))
    return verifier(settings, FixedKeys([key_of_pem("k", public)])).verify(token) is not None


def test_the_lifetime_of_a_token_is_at_most_15_minutes_or_as_set() -> None:
    assert accepts(Settings(), 900.0)
    assert not accepts(Settings(), 901.0)
    assert accepts(Settings(token_lifetime_s=28_800.0), 28_800.0)
    assert not accepts(Settings(token_lifetime_s=60.0), 61.0)


def test_an_unreadable_deny_list_raises_one_alert_and_still_denies(tmp_path: Path) -> None:
    async def run() -> None:
        checker, alerts = verifier(Settings(), FixedKeys(())), list[Alert]()
        path = tmp_path / "denied"
        path.write_text("one\ntwo\n")
        background = BackgroundTasks(alerts.append, time.monotonic)
        deny = partial(deny_revoked, checker, str(path))
        rounds = 0

        async def counted_deny() -> None:
            nonlocal rounds
            rounds += 1
            await deny()

        background.start(
            BackgroundTask("deny list", counted_deny, 0.001, AlertCode.DENY_LIST_UNREADABLE)
        )
        for unreadable in (False, True, False):
            if unreadable:
                path.rename(tmp_path / "away")
            elif not path.exists():
                (tmp_path / "away").rename(path)
            before = rounds
            async with asyncio.timeout(10):
                while rounds < before + 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        await background.stop()
        assert [(a.code, a.cleared) for a in alerts] == [
            (AlertCode.DENY_LIST_UNREADABLE, False),
            (AlertCode.DENY_LIST_UNREADABLE, True),
        ]
        assert all(checker._denied.has(token_id, time.time()) for token_id in ("one", "two"))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tidegate.background, "LONGEST_PAUSE_S", 0.001)
        asyncio.run(run())
