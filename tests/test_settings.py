"""Settings: the order of their sources, and the messages for invalid ones."""

from pathlib import Path

import pytest

from tidegate.settings import HINTS, InvalidSetting, Settings, as_environment, read_settings


def refusal(**environ: str) -> str:
    with pytest.raises(InvalidSetting) as refused:
        read_settings({}, environ)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_without_any_source_the_defaults_apply() -> None:
    settings = read_settings({}, {})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.wait_ms) == ("127.0.0.1", 8080, 500)
    assert (settings.alert_after_attempts, settings.alert_after_s) == (10, 300.0)
    assert (settings.requests_per_second, settings.transfers_per_day) == (10, 100)
    assert not settings.rate_limits
    assert settings.accounts == ("FUNDING", "SPOT")


def test_a_flag_overrides_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "chosen.toml"
    file.write_text('port = 1\nhost = "::1"\nscan_s = 3\n[daily_amounts]\nUSDT = "10.5"\n')
    environ = {"TIDEGATE_PORT": "2", "TIDEGATE_HOST": "::2"}
    settings = read_settings({"port": 3, "host": None}, environ, file)
    assert (settings.port, settings.host, settings.scan_s) == (3, "::2", 3.0)
    assert settings.daily_amounts == {"USDT": "10.5"}


def test_the_named_file_wins_over_the_working_directory_and_that_over_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, current = tmp_path / "all", tmp_path / "current"
    directory.mkdir()
    current.mkdir()
    monkeypatch.chdir(current)
    (directory / "tidegate.toml").write_text("port = 1\n")
    assert read_settings({}, {}, None, directory).port == 1
    (current / "tidegate.toml").write_text("port = 2\n")
    assert read_settings({}, {}, None, directory).port == 2
    assert read_settings({}, {}, directory / "tidegate.toml").port == 1


@pytest.mark.parametrize("prefix", ["", "TIDEGATE_"])
def test_the_names_of_the_specifications_are_accepted(prefix: str) -> None:
    environ = {
        "DATABASE_URL": "postgresql:///money",
        f"{prefix}SCAN_INTERVAL_MS": "5000",
        f"{prefix}RETRY_BACKOFF_MS": "250",
        f"{prefix}ALERT_THRESHOLD": "7",
        f"{prefix}ALERT_AFTER_SECONDS": "60",
    }
    settings = read_settings({}, environ)
    assert settings.database == "postgresql:///money"
    assert (settings.scan_s, settings.retry_first_s) == (5.0, 0.25)
    assert (settings.alert_after_attempts, settings.alert_after_s) == (7, 60.0)
    assert read_settings({}, {"alert_after_retries": "9"}).alert_after_attempts == 9


def test_the_names_of_the_specifications_are_accepted_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text("scan_interval_ms = 1500\nalert_after_retries = 4\nalert_after_seconds = 9\n")
    settings = read_settings({}, {}, file)
    assert (settings.scan_s, settings.alert_after_attempts, settings.alert_after_s) == (1.5, 4, 9)


def test_a_child_process_gets_the_same_settings() -> None:
    settings = Settings(
        database="postgresql:///money",
        schema="another",
        core="tcp:core:7",
        host="::1",
        port=1,
        processes=4,
        health_host="::",
        health_ports=(20, 21, 22, 23),
        directory="elsewhere",
        workers=3,
        log_format="json",
        economy=True,
        scan_s=0.25,
        lease_s=2.0,
        connections=9,
        ring_size=10,
        worker_port=19,
        wait_ms=11,
        audit_s=12.0,
        full_audit_s=3600.0,
        retry_first_s=0.5,
        alert_after_attempts=13,
        alert_after_s=14.0,
        alert_busy_owner=15,
        alert_webhook="https://example.org/alerts",
        rate_limits=True,
        requests_per_second=16,
        transfers_per_day=17,
        daily_amounts={"USDT": "1000.50", "BTC": "2"},
        accounts=("SPOT", "FUTURE"),
        issuer="an issuer",
        audience="us",
        token_lifetime_s=18.5,
        keys="keys.json",
        jwks_url="https://example.org/keys",
        deny_list="denied",
    )
    assert [n for n in HINTS if getattr(settings, n) == getattr(Settings(), n)] == []
    assert read_settings({}, as_environment(settings)) == settings
    assert read_settings({}, as_environment(Settings())) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("TIDEGATE_PORT", "soon", "a port from 0 to 65535"),
        ("TIDEGATE_PORT", "65536", "a port from 0 to 65535"),
        ("TIDEGATE_PORT", "-1", "a port from 0 to 65535"),
        ("TIDEGATE_HOST", "", "not empty"),
        ("TIDEGATE_PROCESSES", "0", "a number from 1 to 64"),
        ("TIDEGATE_PROCESSES", "65", "a number from 1 to 64"),
        ("TIDEGATE_HEALTH_PORTS", "9101,soon", "one per process"),
        ("TIDEGATE_CORE", "http://core", "unix:PATH or tcp:HOST:PORT"),
        ("TIDEGATE_LOG_FORMAT", "xml", "text or json"),
        ("TIDEGATE_RATE_LIMITS", "maybe", "true or false"),
        ("TIDEGATE_ACCOUNTS", "FUNDING,CASH", "FUNDING, SPOT, FUTURE, MARGIN"),
        ("TIDEGATE_ACCOUNTS", "", "FUNDING, SPOT, FUTURE, MARGIN"),
        ("TIDEGATE_DAILY_AMOUNTS", "USDT", "USDT=1000.50"),
        ("TIDEGATE_SCAN_S", "0", "more than 0"),
        ("TIDEGATE_SCAN_S", "nan", "more than 0"),
        ("TIDEGATE_LEASE_S", "inf", "up to 86400"),
        ("TIDEGATE_WAIT_MS", "10001", "milliseconds from 0 to 10000"),
        ("TIDEGATE_JWKS_URL", "ftp://keys", "http"),
        ("SCAN_INTERVAL_MS", "soon", "more than 0"),
        ("ALERT_THRESHOLD", "0", "from 1"),
    ],
)
def test_the_message_for_an_invalid_setting_has_its_name_and_the_allowed_values(
    name: str, value: str, allowed: str
) -> None:
    message = refusal(**{name: value})
    assert name.removeprefix("TIDEGATE_").lower() in message
    assert repr(value) in message
    assert allowed in message


def test_an_unknown_setting_is_refused_by_name() -> None:
    assert "no setting 'prot'; did you mean 'port'?" in refusal(TIDEGATE_PROT="1")
    assert "no setting 'zzz'; the settings are database, " in refusal(TIDEGATE_ZZZ="1")


def test_two_names_of_one_setting_must_agree() -> None:
    message = refusal(DATABASE_URL="postgresql:///a", TIDEGATE_DATABASE="postgresql:///b")
    assert "database_url and database are the same setting with two values" in message
    assert read_settings({}, {"SCAN_INTERVAL_MS": "2000", "TIDEGATE_SCAN_S": "2"}).scan_s == 2


def test_variables_that_are_not_settings_are_ignored() -> None:
    environ = {"TIDEGATE_TOKEN": "t", "TIDEGATE_URL": "u", "TIDEGATE_TEST_DATABASE": "d"}
    assert read_settings({}, environ) == Settings()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    with pytest.raises(InvalidSetting, match=r"tidegate\.toml cannot be read"):
        read_settings({}, {}, file)
    file.write_text("port = \n")
    with pytest.raises(InvalidSetting, match=r"tidegate\.toml is not valid TOML"):
        read_settings({}, {}, file)
    file.write_text("port = '80'\nports = 1\n")
    with pytest.raises(InvalidSetting, match=r"tidegate\.toml: there is no setting 'ports'"):
        read_settings({}, {}, file)


def test_every_setting_describes_its_allowed_values() -> None:
    for name in HINTS:
        with pytest.raises(InvalidSetting, match=rf"{name} = .* is invalid; allowed: \w"):
            read_settings({name: object()}, {})
