"""The benchmark itself: the smallest run of it measures, conserves, and comes to ratios."""

from collections.abc import Iterator, Mapping
from xml.etree import ElementTree as ET

import psycopg
import pytest

from bench import page, plot, report
from bench.cases import CASES, Case
from bench.running import Extra, Failed, Timing, figure, run
from bench.scale import ratios as scale_ratios
from bench.world import START, NotConserved, World, books

pytestmark = pytest.mark.slow

TINY = Timing(seconds=0.5, warm_s=0.3)
FEW = 100


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("bench")) as world:
        yield world


def named(name: str) -> Case:
    [case] = [case for case in CASES if case.name == name]
    return case._replace(accounts=FEW)


def case_of(per_s: float, **more: float) -> report.Report:
    return {name: figure([value]) for name, value in {"per_s": per_s, **more}.items()}


@pytest.mark.parametrize(
    "name", ["literal-psycopg-16", "tidegate-64", "tidegate-256-refused-50", "pool-64"]
)
def test_a_case_is_measured_and_conserves(world: World, name: str) -> None:
    case = named(name)
    found = run(case, world, TINY)
    assert found.result.made >= found.result.counted > 0
    assert 0 < found.result.p50_ms <= found.result.p99_ms <= found.result.max_ms
    assert set(found.cpu_us) == set(found.memory_mb) == {"python", "postgres", "core"}
    assert min(found.memory_mb.values()) > 1
    assert found.wal_bytes > 100
    assert found.fsyncs > 0
    assert (found.result.refused > 0) == (case.refusals > 0)
    shown = report.summary(case, [found])
    assert shown["per_s"]["median"] == round(found.per_s, 3)


def test_every_case_begins_with_the_same_money(world: World) -> None:
    with world.stage(world.base(FEW)) as stage:
        # In the ledger, in the literal one and in the core.
        assert books(stage) == (3 * FEW * START, 0)


def test_a_run_that_loses_money_is_refused(world: World) -> None:
    def steal(_: Mapping[str, int]) -> None:
        with psycopg.connect(world.server.url("run"), autocommit=True) as connection:
            connection.execute("UPDATE literal.balances_tb SET available = 1 WHERE user_id = 1")

    with pytest.raises(NotConserved):
        run(named("tidegate-1"), world, TINY, Extra(watch=steal))


def test_a_load_that_dies_is_told_with_its_last_words(world: World) -> None:
    with pytest.raises(Failed, match="KeyError"):
        run(named("tidegate-1")._replace(kind="unheard of"), world, TINY)


def test_ratios_are_of_the_best_of_each_side() -> None:
    cases = {
        "literal-psycopg-64": case_of(100),
        "literal-asyncpg-64": case_of(200),
        "literal-asyncpg-256": case_of(400),
        "tidegate-64": case_of(2_000),
        "tidegate-256": case_of(6_000, p99_ms=12.5),
        "tidegate-256-refused-50": case_of(90_000),
        "tidegate-4096": case_of(8_000),
        "ceiling": case_of(16_000),
    }
    assert report.ratios(cases) == {
        "saturation_over_literal": 20,
        "inflight64_over_literal64": 10,
        "engine_over_ceiling": 0.5,
        "p99_inflight256_ms": 12.5,
    }
    spreads = report.ranges(report.ratio_rounds(cases))
    assert spreads["saturation_over_literal"] == [20, 20]
    assert spreads.keys() == report.ratios(cases).keys()


def test_the_measures_of_scale_have_their_names() -> None:
    found: dict[str, object] = {
        "finished": {"10000": case_of(100), "10000000": case_of(90)},
        "backlog": {"transfers": 100_000, "seconds": 4.5},
        "replay": {"10000000": {"per_s": 1_000_000}},
        "apply": {"per_s": 700_000},
        "idle": {"percent": 0.8},
    }
    named = scale_ratios(found)
    assert set(named) == set(report.OF_SCALE)
    assert named["finished10m_over_10k"] == 0.9
    small: dict[str, object] = {"backlog": {"transfers": 2_000, "seconds": 0.1}}
    assert scale_ratios(small) == {}, "a smaller backlog is another measure"


def test_a_new_run_keeps_the_scale_and_nothing_else() -> None:
    old = {"ratios": {"backlog100k_s": 4.0, "saturation_over_tpcb": 1.0}, "scale": {"idle": {}}}
    whole = report.keep_scale(old, {"ratios": {"engine_over_ceiling": 0.6}, "cases": {}})
    assert whole["ratios"] == {"engine_over_ceiling": 0.6, "backlog100k_s": 4.0}
    assert whole["scale"] == {"idle": {}}


def test_a_case_that_failed_in_a_round_does_not_look_whole() -> None:
    zero = {"median": 0.0, "min": 0.0, "max": 0.0}
    names = ("per_s", "p50_ms", "p95_ms", "p99_ms", "max_ms", "wal_bytes", "fsyncs")
    case = dict.fromkeys(names, zero) | {"rounds": 2, "cpu_us": {}, "memory_mb": {}}
    [whole] = report.rows({"ceiling": case}, {})
    [short] = report.rows({"ceiling": case}, {"ceiling": "it died"})
    assert (whole[0], short[0]) == ("ceiling", "ceiling (2 rounds only)")


def test_a_target_is_reached_from_its_own_side() -> None:
    assert report.verdict("engine_over_ceiling", {"engine_over_ceiling": 0.76}) == "goal"
    assert report.verdict("engine_over_ceiling", {"engine_over_ceiling": 0.71}) == "reached"
    assert report.verdict("engine_over_ceiling", {"engine_over_ceiling": 0.59}) == "missed"
    assert report.verdict("p99_inflight256_ms", {"p99_inflight256_ms": 16.0}) == "reached"
    assert report.verdict("p99_inflight256_ms", {"p99_inflight256_ms": 31.0}) == "missed"


def test_the_picture_has_a_bar_for_each_case() -> None:
    cases = {c.name: {"per_s": {"median": 50, "min": 40, "max": 60}} for c in CASES}
    texts = [element.text for element in ET.fromstring(plot.svg(cases)).iter()]
    assert all(case.name in texts for case in CASES)


def test_the_page_shows_what_was_measured_and_what_is_missing() -> None:
    found = {"ratios": {"engine_over_ceiling": 0.6}, "missing": {"dbos-4": "no network"}}
    shown = page.markdown(found)
    assert "| `engine_over_ceiling` | 0.6 |" in shown
    assert "| dbos-4 | missing | no network |" in shown
    assert shown.count("not measured") == len(report.TARGETS) - 1
