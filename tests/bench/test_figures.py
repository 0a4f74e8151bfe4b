"""How figures are reported: aims, spreads, the machine's own speed, checksums, and the page."""

import hashlib
from pathlib import Path

import msgspec
import pytest

from bench import checksums, machine, page, report
from bench.__main__ import FULL, Spent
from bench.cases import CASES
from bench.running import Run, figure
from bench.scale import ratios, rounds
from bench.spec import Result

AIMS = {
    "saturation_over_literal": (20, 30),
    "inflight64_over_literal64": (10, 14),
    "saturation_over_tpcb": (4.5, 6),
    "inflight256_over_dbos": (100, 150),
    "http_over_restate": (18, 30),
    "http_over_fastapi_literal": (12, 20),
    "http_batch_over_single": (2, 4),
    "engine_over_ceiling": (0.6, 0.75),
    "p99_inflight256_ms": (30, 15),
    "p50_lone_http_ms": (5, 3.5),
    "finished10m_over_10k": (0.95, 1),
    "backlog100k_s": (8, 5),
    "core_apply_per_s": (500_000, 800_000),
    "core_replay_per_s": (800_000, 1_200_000),
    "pool256_over_pgqueuer_members": (1, 2),
    "idle_cpu_percent": (1.5, 1),
}


def run_of(per_s: float, p99_ms: float = 3.0) -> Run:
    times = {"p50_ms": 1.0, "p95_ms": 2.0, "max_ms": 4.0}
    counts = {"counted": 1, "seconds": 1.0, "made": 1}
    result = msgspec.convert({**counts, **times, "p99_ms": p99_ms}, Result)
    roles = {"python": per_s, "postgres": 2 * per_s}
    return Run(
        result=result, per_s=per_s, cpu_us=roles, memory_mb=roles, wal_bytes=100.0, fsyncs=0.5
    )


def cases_of(**speeds: list[float]) -> dict[str, report.Report]:
    named = {case.name.replace("-", "_"): case for case in CASES}
    cases = {}
    for name, each in speeds.items():
        cases[named[name].name] = report.summary(named[name], [run_of(speed) for speed in each])
    return cases


def test_each_aim_has_its_least_and_its_goal() -> None:
    assert {name: (least, goal) for name, (least, goal, _) in report.TARGETS.items()} == AIMS


def test_the_goal_is_never_easier_than_the_least() -> None:
    for least, goal, more in report.TARGETS.values():
        assert goal > least if more else goal < least


def test_every_aim_is_measured_by_somebody() -> None:
    assert {*report.RATIOS, *report.LATENCIES, *report.OF_SCALE} == set(report.TARGETS)


def test_the_cases_of_a_ratio_exist() -> None:
    for sides in report.RATIOS.values():
        for name in (name for side in sides for name in side):
            found = [c for c in CASES if c.name == name or c.name.startswith(name)]
            assert found, f"no case is named {name}"


def test_a_figure_keeps_every_round_in_its_order() -> None:
    found = figure([3.0, 1.0, 2.00049])
    assert found == {"median": 2.0, "min": 1.0, "max": 3.0, "rounds": [3.0, 1.0, 2.0]}


def test_a_ratio_is_of_medians_and_its_spread_of_single_rounds() -> None:
    cases = cases_of(pool_256=[300, 200, 100], pgqueuer_members_256=[100, 100, 200])
    name = "pool256_over_pgqueuer_members"
    assert report.ratios(cases)[name] == 2
    by_round = report.ratio_rounds(cases)
    assert by_round[name] == [3, 2, 0.5]
    assert report.ranges(by_round)[name] == [0.5, 3]


def test_the_best_of_a_round_is_compared_with_the_best_of_that_round() -> None:
    cases = cases_of(
        tidegate_64=[100, 400], literal_psycopg_64=[50, 10], literal_asyncpg_64=[20, 40]
    )
    assert report.ratio_rounds(cases)["inflight64_over_literal64"] == [2, 10]


def test_a_latency_has_a_spread_too() -> None:
    [case] = [case for case in CASES if case.name == "tidegate-256"]
    runs = [run_of(1000, p99_ms=p99_ms) for p99_ms in (30.0, 10.0, 20.0)]
    cases = {case.name: report.summary(case, runs)}
    assert report.ratios(cases)["p99_inflight256_ms"] == 20
    assert report.ranges(report.ratio_rounds(cases))["p99_inflight256_ms"] == [10, 30]


def test_a_case_that_failed_in_a_round_gives_its_ratio_no_spread() -> None:
    cases = cases_of(pool_256=[300, 200, 100], pgqueuer_members_256=[100, 100])
    assert "pool256_over_pgqueuer_members" in report.ratios(cases)
    assert "pool256_over_pgqueuer_members" not in report.ratio_rounds(cases)


def test_every_figure_of_a_case_is_shown_with_its_spread() -> None:
    cases = cases_of(tidegate_256=[1000, 3000, 2000])
    [cells] = report.rows(cases, {})
    shown = dict(zip((*report.COLUMNS, *report.MORE), cells, strict=True))
    assert shown["per s"] == "2,000 (1,000…3,000)"
    assert shown["MB"] == "6,000 (3,000…9,000)", "of all roles together, round by round"
    assert shown["core"] == "", "nobody played it"
    for name in set(shown) - {"case", "core"}:
        assert "…" in shown[name], name


def test_the_scale_has_spreads_where_it_has_rounds() -> None:
    found: dict[str, object] = {
        "finished": {
            "10000": {"per_s": figure([100.0, 200.0])},
            "10000000": {"per_s": figure([90.0, 210.0])},
        },
        "backlog": {"transfers": 100_000, "seconds": 5.0, "rounds": [6.0, 4.0]},
        "replay": {"10000000": {"seconds": [8.0, 10.0], "per_s": 1_000_000}},
        "apply": {"per_s": 700_000, "rounds": [600_000, 800_000]},
        "idle": {"percent": 0.8, "rounds": [0.7, 0.9]},
    }
    assert rounds(found) == {
        "finished10m_over_10k": [0.9, 1.05],
        "backlog100k_s": [6.0, 4.0],
        "core_replay_per_s": [1_250_000, 1_000_000],
        "core_apply_per_s": [600_000, 800_000],
        "idle_cpu_percent": [0.7, 0.9],
    }
    assert rounds(found).keys() == ratios(found).keys()
    small: dict[str, object] = {"backlog": {"transfers": 2_000, "seconds": 1, "rounds": [1.0]}}
    assert rounds(small) == {}, "a smaller backlog is another measure"


def test_the_spreads_of_the_scale_are_kept_with_it() -> None:
    idle = "idle_cpu_percent"
    first = report.add_scale({}, {"measured": {"idle": {}}}, {idle: 1.0}, {idle: [0.5, 1.0, 2.0]})
    fresh = {"ratios": {"engine_over_ceiling": 0.6}, "ratio_ranges": {}, "ratio_rounds": {}}
    whole = report.keep_scale(first, fresh)
    assert whole["ratios"] == {"engine_over_ceiling": 0.6, idle: 1.0}
    assert whole["ratio_ranges"] == {idle: [0.5, 2.0]}
    assert whole["ratio_rounds"] == {idle: [0.5, 1.0, 2.0]}
    again = report.add_scale(whole, {"measured": {"idle": {}}}, {idle: 3.0}, {})
    assert again["ratio_ranges"] == {}, "an old spread must not stand beside a new figure"


def test_the_speed_of_the_machine_has_a_spread_and_is_told() -> None:
    speeds = [machine.Speed(4e6, 800.0), machine.Speed(2e6, 900.0), machine.Speed(3e6, 700.0)]
    found = machine.summary(speeds)
    assert found["python_steps_per_s"]["median"] == 3e6
    assert found["sql_statements_per_s"]["min"] == 700
    shown = page.markdown({"machine_speed": found})
    assert "3,000,000 (2,000,000…4,000,000) steps of a Python loop per second" in shown
    assert "800 (700…900) statements of a SQL loop per second" in shown


def test_the_speed_before_the_parts_of_the_scale_is_told_too() -> None:
    by_part = {part: machine.Speed(1e6, speed).rounded() for part, speed in (("a", 10), ("b", 30))}
    shown = page.markdown({"scale": {"machine_speed": by_part}})
    assert "part of the scale: 1,000,000 (1,000,000…1,000,000)" in shown
    assert "20 (10…30) statements" in shown


def test_the_checksums_are_of_the_yardstick() -> None:
    found = checksums.checksums()
    here = Path(checksums.__file__).parent
    others = {"literal.py", "load.py", "driving.py", "traffic.py", "http_client.py"}
    others |= {path.relative_to(here).as_posix() for path in (here / "peers").glob("*.py")}
    assert others <= found.keys()
    content = (here / "literal.py").read_bytes()
    assert found["literal.py"] == hashlib.sha256(content).hexdigest()


def test_a_changed_file_has_another_checksum(tmp_path: Path) -> None:
    for path in checksums.yardstick():
        copy = tmp_path / path.relative_to(checksums.HERE)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
    assert checksums.checksums(tmp_path) == checksums.checksums()
    with (tmp_path / "traffic.py").open("a") as file:
        file.write("\n")
    before, after = checksums.checksums(), checksums.checksums(tmp_path)
    assert [name for name in before if before[name] != after[name]] == ["traffic.py"]
    assert after["traffic.py"][: checksums.SHOWN] in page.markdown({"checksums": after})


def test_peers_have_as_long_a_warm_up_as_ever() -> None:
    warm_s = {case.name: FULL.warm_s + case.more_warm_s for case in CASES}
    for case in CASES:
        if case.environment:
            least = 7.0 if case.front == "restate" else 2.0
            assert warm_s[case.name] >= least, case.name


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_every_literal_case_that_could_be_the_best_is_measured(driver: str) -> None:
    names = {case.name for case in CASES}
    assert {f"literal-{driver}-{n}" for n in (16, 64, 256)} <= names


def test_a_run_tells_how_its_time_was_spent() -> None:
    spent = Spent()
    for _ in range(2):
        with spent.on("tape"):
            pass
    assert spent.rounded().keys() == {"whole run", "tape"}
