"""One run of one case: prepares its stage, starts the load, reads the gauges, checks the books."""

import os
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from bench.cases import Case
from bench.fronts import ROOT, opened
from bench.gauges import cpu_of, memory_of, written
from bench.peers import environments
from bench.spec import MEMBERS, Result, Spec
from bench.world import Base, Books, NotConserved, World, books, tpcb_books

TIMEOUT_S = 120.0


class Timing(NamedTuple):
    seconds: float
    warm_s: float


class Failed(Exception):
    """The case could not be run. The message contains the end of its log."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run."""

    result: Result
    per_s: float
    cpu_us: dict[str, float]  # Per transfer, by role.
    memory_mb: dict[str, float]  # At the end of the window, by role.
    wal_bytes: float  # Per transfer.
    fsyncs: float  # Of PostgreSQL, per transfer.


Watch: TypeAlias = Callable[[Mapping[str, int]], None]


class Extra(NamedTuple):
    """Settings that only few cases need."""

    tape: str = ""
    base: Base | None = None  # If not the usual base of its accounts.
    watch: Watch = lambda _: None  # Called with the process of each role when the window opens.


NOTHING = Extra()


def run(case: Case, world: World, timing: Timing, extra: Extra = NOTHING) -> Run:
    with world.stage(extra.base or base_of(case, world)) as stage:
        before = books(stage) if case.transfers else Books(0, 0)
        with opened(case, stage) as front:
            spec = Spec(
                kind=case.kind,
                database=stage.database,
                core=stage.core,
                inflight=case.inflight,
                seconds=timing.seconds,
                warm_s=timing.warm_s + case.more_warm_s,
                accounts=case.accounts,
                direction=case.direction,
                refusals=case.refusals,
                driver=case.driver,
                batch=case.batch,
                url=front.url,
                path=front.path,
                users=front.users,
                programs=str(world.programs),
                tape=extra.tape,
            )
            load = Load(case, spec, {**stage.roles, **front.roles}, stage.directory / "load.log")
            measured = _measure(world, load, extra.watch)
        after = books(stage) if case.transfers else tpcb_books(stage)
        if after.money != before.money or after.open:
            raise NotConserved(f"{case.name}: {before} became {after}")
    return measured


def base_of(case: Case, world: World) -> Base:
    """The base of the case. It is created on first use."""
    if case.kind == "tpcb":
        return world.tpcb()
    return (world.guilds if case.direction == MEMBERS else world.base)(case.accounts)


class Load(NamedTuple):
    case: Case
    spec: Spec
    roles: Mapping[str, int]
    log: Path


def _measure(world: World, load: Load, watch: Watch) -> Run:
    case, log = load.case, load.log
    wal_before = written(world.connection)
    # If there is a client and a server, the Python of the server counts.
    with _started("" if case.front else case.environment, load.spec, log) as child:
        everyone = {**load.roles, "client" if case.front else "python": child.pid}
        _expect(child, "open", log)
        watch(everyone)
        began = cpu_of(everyone)
        _expect(child, "closed", log)
        ended, memory = cpu_of(everyone), memory_of(everyone)
        assert child.stdout is not None
        assert child.stdin is not None
        output = child.stdout.readline()
        child.stdin.close()  # It has waited for this, so that its memory could be read.
        if child.wait(TIMEOUT_S) or not output:
            raise Failed(f"{case.name}: {_last_words(log)}")
    result = msgspec.json.decode(output, type=Result)
    if not result.counted:
        raise Failed(f"{case.name}: nothing ended inside the window; {_last_words(log)}")
    wal_after = written(world.connection)
    counted, made = max(result.counted, 1), max(result.made, 1)
    return Run(
        result=result,
        per_s=result.counted / result.seconds,
        cpu_us={role: (ended[role] - began[role]) * 1e6 / counted for role in everyone},
        memory_mb=memory,
        wal_bytes=(wal_after.wal_bytes - wal_before.wal_bytes) / made,
        fsyncs=(wal_after.syncs - wal_before.syncs) / made,
    )


def _started(environment: str, spec: Spec, log: Path) -> "subprocess.Popen[str]":
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [environments.python(environment), "-m", "bench.load"]
    with log.open("wb") as errors:
        return subprocess.Popen(
            [*command, msgspec.json.encode(spec).decode()],
            env=os.environ | {"PYTHONPATH": paths},
            cwd=log.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def _expect(child: "subprocess.Popen[str]", word: str, log: Path) -> None:
    """Skip everything else that a peer prints."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == word:
            return
    child.wait(TIMEOUT_S)
    raise Failed(_last_words(log))


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else "its log is empty"


def figure(values: Sequence[float]) -> dict[str, Any]:
    """The median, the range and all values in the order of the rounds."""
    median, least, most = (round(f(values), 3) for f in (statistics.median, min, max))
    return {"median": median, "min": least, "max": most, "rounds": [round(v, 3) for v in values]}
