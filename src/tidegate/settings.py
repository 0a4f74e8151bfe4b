"""Settings from a TOML file, the environment and flags; an invalid one is refused by name."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

FILE = "tidegate.toml"
PREFIX = "TIDEGATE_"
# Environment variables with the prefix that are not settings: those of the command line client,
# and those of the test suite.
NOT_SETTINGS = ("TIDEGATE_TOKEN", "TIDEGATE_URL")
TEST_PREFIX = "TIDEGATE_TEST_"

Text = Annotated[str, Meta(min_length=1, description="a text that is not empty")]
MAX_PROCESSES = 64
Count = Annotated[int, Meta(ge=1, le=1_000_000, description="a whole number from 1 to 1000000")]
Port = Annotated[int, Meta(ge=0, le=65535, description="a port from 0 to 65535; 0 is any free one")]
Seconds = Annotated[float, Meta(gt=0, le=86_400, description="seconds: more than 0, up to 86400")]
Switch = Annotated[bool, Meta(description="true or false")]
Url = Annotated[str, Meta(pattern="^https?://", description="an address http://… or https://…")]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a running Tidegate. In the file they have the names of these fields."""

    database: (
        Annotated[str, Meta(min_length=1, description="postgresql://USER@HOST/NAME")] | None
    ) = None
    schema: Annotated[str, Meta(min_length=1, max_length=63, description="1 to 63 bytes")] = (
        "tidegate_store"
    )
    core: (
        Annotated[str, Meta(pattern="^(unix|tcp):.", description="unix:PATH or tcp:HOST:PORT")]
        | None
    ) = None
    host: Text = "127.0.0.1"
    port: Port = 8080
    processes: (
        Annotated[
            int, Meta(ge=1, le=MAX_PROCESSES, description=f"a number from 1 to {MAX_PROCESSES}")
        ]
        | None
    ) = None  # API processes. None: 1 for `tidegate api`; for `up` it depends on the machine.
    # With several API processes, each serves its health and metrics on a port of its own.
    health_host: Text = "127.0.0.1"
    health_ports: Annotated[
        tuple[Port, ...],
        Meta(max_length=MAX_PROCESSES, description="ports such as 9101,9102: one per process"),
    ] = ()  # Empty: free ports, which the log shows.
    worker_port: Port = 0  # For the health and metrics of a worker. The log shows it.
    directory: Text = "data"  # For all files of `tidegate up`.
    workers: Annotated[int, Meta(ge=0, le=64, description="a whole number from 0 to 64")] = 1
    log_format: Annotated[Literal["text", "json"], Meta(description="text or json")] = "text"

    economy: Switch = False  # `tidegate migrate` installs the schema of the guild economy.

    scan_s: Seconds = 1.0
    lease_s: Seconds = 10.0
    connections: Annotated[int, Meta(ge=2, le=1000, description="a number from 2 to 1000")] = 8
    ring_size: Count = 10_000
    wait_ms: Annotated[int, Meta(ge=0, le=10_000, description="milliseconds from 0 to 10000")] = 500
    audit_s: Seconds = 30.0
    full_audit_s: Seconds = 86_400.0  # All old transfers are audited again within this time.

    retry_first_s: Seconds = 1.0
    alert_after_attempts: Count = 10
    alert_after_s: Seconds = 300.0
    alert_busy_owner: Count = 30  # Transfers of one owner per minute.
    alert_webhook: Url | None = None

    rate_limits: Switch = False  # Switches the next three settings on.
    requests_per_second: Count = 10
    transfers_per_day: Count = 100
    daily_amounts: Annotated[
        dict[str, str], Meta(description="amounts per asset, such as USDT=1000.50,BTC=2")
    ] = {}

    accounts: Annotated[
        tuple[Literal["FUNDING", "SPOT", "FUTURE", "MARGIN"], ...],
        Meta(min_length=1, description="a list of FUNDING, SPOT, FUTURE, MARGIN"),
    ] = ("FUNDING", "SPOT")

    issuer: Text = "tidegate"
    audience: Text = "tidegate"
    token_lifetime_s: Seconds | None = None  # Tokens with a longer lifetime are refused.
    keys: Text | None = None  # A JWKS file with the public keys.
    jwks_url: Url | None = None
    deny_list: Text | None = None  # A file with the ids of revoked tokens, one per line.


class InvalidSetting(Exception):
    """A setting is unknown or has an invalid value. The message is one line."""


HINTS = get_type_hints(Settings, include_extras=True)
NAMES = tuple(HINTS)

# Names that the specifications use for some settings: our name, and how many of their units are
# one of ours. 0: the value is not scaled.
ALIASES: Mapping[str, tuple[str, float]] = {
    "database_url": ("database", 0),
    "scan_interval_ms": ("scan_s", 1000),
    "retry_backoff_ms": ("retry_first_s", 1000),
    "alert_threshold": ("alert_after_attempts", 0),
    "alert_after_retries": ("alert_after_attempts", 0),
    "alert_after_seconds": ("alert_after_s", 0),
}


def read_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None = None,
    directory: Path | None = None,
) -> Settings:
    """Each source overrides the one before it: file, environment, flags. None: flag not given."""
    values: dict[str, object] = {}
    if path := _file(file, directory):
        values |= _resolve(_toml(path).items(), str(path))
    values |= _resolve(_environment(environ), "the environment")
    given_flags = {name: value for name, value in flags.items() if value is not None}
    values |= _resolve(given_flags.items(), "a flag")
    return Settings(**values)  # type: ignore[arg-type]


def as_environment(settings: Settings) -> dict[str, str]:
    """The settings as environment variables, for a child process without a file and flags."""
    return {
        PREFIX + name.upper(): _text(value)
        for name, value in msgspec.structs.asdict(settings).items()
        if value is not None and value not in ({}, ())
    }


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without settings, for a child that gets all its settings explicitly."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(PREFIX) and name.lower() not in ALIASES
    }


def _text(value: object) -> str:
    match value:
        case dict():
            return ",".join(f"{asset}={amount}" for asset, amount in value.items())
        case tuple():
            return ",".join(map(str, value))
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)


def _file(named: Path | None, directory: Path | None) -> Path | None:
    """The named file, which must exist, or the first default file that exists."""
    if named is not None:
        return named
    defaults = [Path(FILE), *([directory / FILE] if directory else [])]
    return next((path for path in defaults if path.is_file()), None)


def _toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as fault:
        raise InvalidSetting(f"--config: {path} cannot be read: {fault}") from fault
    except tomllib.TOMLDecodeError as fault:
        raise InvalidSetting(f"{path} is not valid TOML: {fault}") from fault


def _environment(environ: Mapping[str, str]) -> Iterable[tuple[str, object]]:
    for name, value in sorted(environ.items()):
        if name.startswith(PREFIX):
            if name not in NOT_SETTINGS and not name.startswith(TEST_PREFIX):
                yield name.removeprefix(PREFIX).lower(), value
        elif name.lower() in ALIASES and name in (name.upper(), name.lower()):
            yield name.lower(), value


def _resolve(values: Iterable[tuple[str, object]], source: str) -> dict[str, object]:
    """The settings under our names, in our units. Two names of one setting must agree."""
    resolved: dict[str, object] = {}
    names: dict[str, str] = {}
    for name, value in values:
        if name not in HINTS and name not in ALIASES:
            raise InvalidSetting(f"{source}: there is no setting {name!r}; {_suggestion(name)}")
        ours, per_unit = ALIASES.get(name, (name, 0))
        checked = _converted(ours, _scaled(value, per_unit), f"{source}: {name} = {value!r}")
        other = names.setdefault(ours, name)
        if resolved.setdefault(ours, checked) != checked:
            raise InvalidSetting(
                f"{source}: {other} and {name} are the same setting with two values: keep one"
            )
    return resolved


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name, [*NAMES, *ALIASES], 1)
    return f"did you mean {near[0]!r}?" if near else f"the settings are {', '.join(NAMES)}"


def _scaled(value: object, per_unit: float) -> object:
    try:
        return float(str(value)) / per_unit if per_unit else value
    except ValueError:
        return value  # Not a number: the next check refuses it.


def _converted(name: str, value: object, assignment: str) -> object:
    hint = HINTS[name]
    try:
        # A text is converted to the type, because the environment contains only texts.
        return msgspec.convert(_unpacked(hint, value), hint, strict=not isinstance(value, str))
    except (msgspec.ValidationError, ValueError) as fault:
        raise InvalidSetting(f"{assignment} is invalid; allowed: {_allowed(hint)}") from fault


def _unpacked(hint: Any, value: object) -> object:
    """Split a list or a table in the one-line form of the environment."""
    if not isinstance(value, str):
        return value
    kind = get_origin(get_args(hint)[0]) if get_args(hint) else None
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if kind is tuple:
        return parts
    if kind is dict:
        pairs = [part.partition("=") for part in parts]
        if not all(equals and asset and amount for asset, equals, amount in pairs):
            raise ValueError(value)
        return {asset.strip(): amount.strip() for asset, _, amount in pairs}
    return value


def _allowed(hint: Any) -> str:
    inner = [meta for part in get_args(hint) for meta in getattr(part, "__metadata__", ())]
    metas = [*getattr(hint, "__metadata__", ()), *inner]
    return next(m.description for m in metas if isinstance(m, Meta) and m.description)
