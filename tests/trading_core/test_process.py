"""The core as a real process: killed, started twice, restored from a copy, on a full disk."""

import asyncio
import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from tests.trading_core.questions import known_core_loader
from tidegate.core.answers import Answer, Done, Rejected, Unreachable
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.transfer import Question
from tidegate.core.wire import HistoryMark
from tidegate.systems.trading import CoreCaller, TradingCoreClient, dial
from tidegate.trading_core import server

MAX_FILE = 20_000


class CoreProcess:
    """One start of the core. It is ready when the constructor returns."""

    def __init__(self, directory: Path, *options: str, max_file: int | None = None) -> None:
        self.address = f"unix:{directory / 's'}"
        self._limit = max_file
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tidegate.trading_core"),
                *("--data", str(directory / "data"), "--listen", self.address, *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=self._confine,  # noqa: PLW1509
        )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()

    def _confine(self) -> None:
        if self._limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._limit, self._limit))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ends()[0]

    def ends(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=10)
        return self.process.returncode, errors


@contextlib.contextmanager
def started(directory: Path, *options: str, max_file: int | None = None) -> Iterator[CoreProcess]:
    core = CoreProcess(directory, *options, max_file=max_file)
    try:
        assert core.ready.startswith("trading core ready: "), core.ends()
        yield core
    finally:
        core.kill()


def client(address: str, mark: HistoryMark | None = None) -> TradingCoreClient:
    return TradingCoreClient(
        "core", dial(address), CoreCaller("worker", 5), known_core_loader(mark)
    )


def credit(number: int, amount: int, owner: int = 1) -> Question:
    return Question(UUID(int=number), 0, Verb.CREDIT, Party("core", "SPOT", owner), 7, amount)


def debit(number: int, amount: int, owner: int = 1) -> Question:
    return Question(UUID(int=number), 0, Verb.DEBIT, Party("core", "SPOT", owner), 7, amount)


async def once(
    address: str, questions: Sequence[Question], mark: HistoryMark | None = None
) -> HistoryMark:
    """Ask, and return the mark that a database would store."""
    trading = client(address, mark)
    try:
        await trading.ask(questions)
        assert trading.mark is not None
        return trading.mark
    finally:
        await trading.close()


class Ledger:
    """What clients know: the questions asked, and the answers received."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.number = 0
        self.open: list[Question] = []
        self.questions: dict[UUID, Question] = {}
        self.answers: dict[UUID, Answer] = {}
        self.mark: HistoryMark | None = None

    def batch(self) -> list[Question]:
        """Open questions and some answered ones again, and new ones."""
        new = []
        for _ in range(self.dice.randint(1, 20)):
            self.number += 1
            make = self.dice.choice((credit, credit, debit))
            new.append(make(self.number, self.dice.randint(1, 1000), self.dice.randint(1, 5)))
        known = list(self.answers)
        again = [self.questions[key] for key in self.dice.sample(known, min(3, len(known)))]
        self.questions.update((question.transfer_id, question) for question in new)
        self.open += new
        return self.open[:50] + again

    def record(self, questions: Sequence[Question], answers: Sequence[Answer]) -> None:
        for question, answer in zip(questions, answers, strict=True):
            assert isinstance(answer, Done | Rejected)
            assert self.answers.setdefault(question.transfer_id, answer) == answer
            if question in self.open:
                self.open.remove(question)


async def run_load(core: CoreProcess, ledger: Ledger, killed_after_s: float) -> None:
    trading = client(core.address, ledger.mark)
    asyncio.get_running_loop().call_later(killed_after_s, core.process.kill)
    with contextlib.suppress(Unreachable):
        while True:
            batches = [ledger.batch() for _ in range(3)]
            asks = [trading.ask(batch) for batch in batches]
            for batch, result in zip(
                batches, await asyncio.gather(*asks, return_exceptions=True), strict=True
            ):
                if isinstance(result, BaseException):
                    raise result
                ledger.record(batch, result)
                ledger.mark = trading.mark
    await trading.close()


async def check_all(address: str, ledger: Ledger) -> None:
    """Ask every open question again. Then the core must agree with every answer it ever gave."""
    trading = client(address, ledger.mark)
    while ledger.open:
        batch = ledger.open[:1000]
        ledger.record(batch, await trading.ask(batch))
    answered = [ledger.questions[key] for key in ledger.answers]
    for start in range(0, len(answered), 1000):
        keys = [(q.transfer_id, q.version) for q in answered[start : start + 1000]]
        assert list(await trading.query(keys)) == [ledger.answers[key] for key, _ in keys]
    for owner in range(1, 6):
        balance = await trading.balance(owner, "SPOT", 7)
        assert balance.amount == sum(_effect(ledger, q) for q in answered if q.party.owner == owner)
    totals = await trading.totals()
    assert totals.sums == {("SPOT", 7): sum(_effect(ledger, q) for q in answered)}
    deltas = {}
    async for event in trading.events(0):
        deltas[event.transfer_id] = event.delta
        if event.position == totals.position:
            break
    assert deltas == {q.transfer_id: _effect(ledger, q) for q in answered}
    await trading.close()


def _effect(ledger: Ledger, question: Question) -> int:
    if not isinstance(ledger.answers[question.transfer_id], Done):
        return 0
    return question.amount if question.verb is Verb.CREDIT else -question.amount


@pytest.mark.slow
def test_thirty_kills_lose_no_answer_and_execute_none_twice(tmp_path: Path) -> None:
    ledger = Ledger(seed=5)
    for cycle in range(30):
        with started(tmp_path) as core:
            asyncio.run(run_load(core, ledger, 0.02 + ledger.dice.random() * 0.1))
            assert core.process.wait(10) == -signal.SIGKILL
        assert ledger.mark is None or ledger.mark.epoch <= cycle + 1
    assert len(ledger.answers) > 300
    with started(tmp_path) as core:
        asyncio.run(check_all(core.address, ledger))


@pytest.mark.slow
def test_kills_during_snapshots_lose_no_answer(tmp_path: Path) -> None:
    ledger = Ledger(seed=6)
    for _ in range(8):
        with started(tmp_path, "--snapshot-records", "25") as core:
            asyncio.run(run_load(core, ledger, 0.05 + ledger.dice.random() * 0.1))
    with started(tmp_path) as core:

        async def compare() -> None:
            trading = client(core.address, ledger.mark)
            answered = [ledger.questions[key] for key in ledger.answers]
            ledger.record(answered, await trading.ask(answered))
            assert (await trading.totals()).sums[("SPOT", 7)] >= 0
            await trading.close()

        asyncio.run(compare())


def test_a_second_process_on_one_directory_is_refused(tmp_path: Path) -> None:
    with started(tmp_path) as core:
        second = CoreProcess(tmp_path)
        code, errors = second.ends()
        assert code == 1
        assert "in use by another trading core" in errors
        asyncio.run(once(core.address, [credit(1, 5)]))  # The first still serves.


def test_sigterm_stops_the_core_properly(tmp_path: Path) -> None:
    with started(tmp_path) as core:
        mark = asyncio.run(once(core.address, [credit(1, 5)]))
        assert core.terminate() == 0
        assert not (tmp_path / "s").exists()
    with started(tmp_path) as core:
        again = asyncio.run(once(core.address, [credit(1, 5)], mark))
        assert (again.position, again.epoch) == (mark.position, mark.epoch + 1)


def test_a_core_restored_from_an_old_copy_is_refused(tmp_path: Path) -> None:
    with started(tmp_path) as core:
        old = asyncio.run(once(core.address, [credit(1, 5)]))
        assert core.terminate() == 0
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with started(tmp_path) as core:
        asyncio.run(once(core.address, [credit(2, 5)], old))
        newer = asyncio.run(once(core.address, [credit(3, 5)], old))
        assert core.terminate() == 0
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "copy").rename(tmp_path / "data")
    with started(tmp_path) as core:
        with pytest.raises(Unreachable, match="BEHIND"):
            asyncio.run(once(core.address, [credit(4, 5)], newer))
        # Clients without a mark move it past the position. Then its history is a different one.
        asyncio.run(once(core.address, [credit(n, 5) for n in range(20, 22)]))
        asyncio.run(once(core.address, [credit(n, 5) for n in range(30, 32)]))
        with pytest.raises(Unreachable, match="FORKED"):
            asyncio.run(once(core.address, [credit(4, 5)], newer))


def test_a_core_that_started_earlier_than_one_seen_is_refused(tmp_path: Path) -> None:
    with started(tmp_path) as core:
        mark = asyncio.run(once(core.address, [credit(1, 5)]))
        seen = HistoryMark(mark.uuid, mark.position, mark.crc, mark.epoch + 1)
        with pytest.raises(Unreachable, match="STALE_EPOCH"):
            asyncio.run(once(core.address, [credit(2, 5)], seen))


def test_an_empty_directory_is_refused_by_a_client_with_a_mark(tmp_path: Path) -> None:
    with started(tmp_path) as core:
        mark = asyncio.run(once(core.address, [credit(1, 5)]))
        core.kill()
    shutil.rmtree(tmp_path / "data")
    with started(tmp_path) as core, pytest.raises(Unreachable, match="OTHER_CORE"):
        asyncio.run(once(core.address, [credit(1, 5)], mark))


def test_a_core_that_is_ahead_serves(tmp_path: Path) -> None:
    with started(tmp_path) as core:
        mark = asyncio.run(once(core.address, [credit(1, 5)]))
        asyncio.run(once(core.address, [credit(2, 5)]))
        later = asyncio.run(once(core.address, [credit(3, 5)], mark))
        assert later.position > mark.position + 1


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    with started(tmp_path) as core:
        core.kill()
        assert (tmp_path / "s").exists()
    with started(tmp_path) as core:
        asyncio.run(once(core.address, [credit(1, 5)]))
        other = subprocess.run(
            [
                *(sys.executable, "-m", "tidegate.trading_core"),
                *("--data", str(tmp_path / "other"), "--listen", core.address),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert other.returncode == 1
        assert "another program is listening" in other.stderr
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600


def test_a_failed_write_stops_the_process_with_a_message(tmp_path: Path) -> None:
    answered: list[Question] = []

    async def fill(address: str) -> HistoryMark | None:
        trading = client(address)
        with contextlib.suppress(Unreachable):
            for number in range(1, 1000):
                await trading.ask([credit(number, 1)])
                answered.append(credit(number, 1))
        await trading.close()
        return trading.mark

    with started(tmp_path, max_file=MAX_FILE) as core:
        mark = asyncio.run(fill(core.address))
        code, errors = core.ends()
    assert code == 1
    assert "the disk failed" in errors
    assert 10 < len(answered) < 300
    with started(tmp_path) as core:

        async def compare() -> int:
            trading = client(core.address, mark)
            await trading.ask(answered)
            balance = await trading.balance(1, "SPOT", 7)
            await trading.close()
            return balance.amount

        # The failed operation was not answered. It may or may not have been written completely.
        assert asyncio.run(compare()) == len(answered)


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        ("unix:/" + "x" * 120, "choose a shorter one"),
        ("unix:", "listen on unix:PATH or tcp:HOST:PORT"),
        ("tcp:localhost", "listen on unix:PATH or tcp:HOST:PORT"),
        ("tcp:localhost:99999", "listen on unix:PATH or tcp:HOST:PORT"),
        ("udp:localhost:1", "listen on unix:PATH or tcp:HOST:PORT"),
        ("unix:/nowhere/at/all/s", "cannot listen on"),
    ],
)
def test_an_unusable_address_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], listen: str, message: str
) -> None:
    assert server.run(tmp_path, listen) == 1
    assert message in capfd.readouterr().err


def test_addresses_are_parsed() -> None:
    assert server.parse_listen("unix:/a/b") == Path("/a/b")
    assert server.parse_listen("tcp:10.0.0.1:80") == ("10.0.0.1", 80)
    assert server.parse_listen("tcp::80") == ("127.0.0.1", 80)
    assert server.parse_listen("tcp:[::1]:80") == ("::1", 80)


def test_it_serves_over_tcp_too(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    core = subprocess.Popen(
        [
            *(sys.executable, "-m", "tidegate.trading_core"),
            *("--data", str(tmp_path), "--listen", f"tcp:127.0.0.1:{port}"),
        ],
        stdout=subprocess.PIPE,
        env=os.environ,
    )
    try:
        assert core.stdout is not None
        assert core.stdout.readline().startswith(b"trading core ready")
        mark = asyncio.run(once(f"tcp:127.0.0.1:{port}", [credit(1, 5)]))
        assert mark.position == 3  # The store, its assets, and the credit.
    finally:
        core.kill()
        core.communicate()
