"""Checks of keys: questions that are repeated, concurrent, reordered or reused."""

from itertools import permutations

from msgspec.structs import replace

from tidegate.certify.checks.check import Check
from tidegate.certify.trial import NotTried, Trial
from tidegate.core.answers import Alarm, Done, Rejected, Unknown
from tidegate.core.flow import Verb

RACERS = 8


async def duplicate(trial: Trial) -> None:
    for question, after in ((trial.debit(40), 60), (trial.credit(40), 100)):
        await trial.assert_done(question)
        await trial.assert_same(question, Done())
        await trial.assert_same(question, Done())
        await trial.assert_balance(after)


async def concurrent_duplicates(trial: Trial) -> None:
    question = trial.debit(10)
    answers = await trial.race(*[question] * RACERS)
    if any(isinstance(answer, Rejected) for answer in answers):
        trial.fail("all clients with one key get the same answer, or Unknown")
    await trial.assert_done(question)
    await trial.assert_balance(90)


async def twice_in_a_batch(trial: Trial) -> None:
    question = trial.debit(60)
    answers = await trial.ask(question, question)
    if any(isinstance(answer, Rejected) for answer in answers):
        trial.fail("both questions get the answer of that key, or Unknown")
    await trial.assert_done(question)
    await trial.assert_balance(40)


async def version_in_key(trial: Trial) -> None:
    first = trial.debit(40)
    await trial.assert_done(first)
    await trial.assert_done(replace(first, version=1, verb=Verb.CREDIT, amount=30))
    await trial.assert_done(replace(first, version=2, amount=5))
    await trial.assert_balance(85)


async def reordering(trial: Trial) -> None:
    balance = 100
    for order in permutations(range(3)):
        sent = [trial.debit(20), trial.credit(15), trial.debit(5)]
        sent[1] = replace(sent[1], transfer_id=sent[0].transfer_id, version=1)
        for index in (*order, *reversed(order)):
            await trial.assert_done(sent[index])
        balance -= 10
        await trial.assert_balance(balance)


async def late_duplicate(trial: Trial) -> None:
    question = trial.debit(40)
    undo = trial.undo(question)
    await trial.assert_done(question)
    await trial.assert_done(undo)
    for late in (question, undo, question):
        await trial.ask_one(late)
        await trial.assert_balance(100)


async def key_reused(trial: Trial) -> None:
    done, refused = trial.debit(40), trial.debit(101)
    await trial.assert_done(done)
    before = await trial.assert_rejected(refused)
    changed = (
        replace(done, amount=41),
        replace(done, amount=39),
        replace(done, verb=Verb.CREDIT),
        replace(done, party=replace(done.party, owner=trial.other)),
        replace(refused, amount=1),
    )
    for reused in changed:
        await trial.assert_unknown(reused, Alarm.PAGE)
        await trial.assert_balance(60)
    await trial.assert_same(done, Done())
    await trial.assert_same(refused, before)


async def sticky_refusal(trial: Trial) -> None:
    question = trial.debit(101)
    refused = await trial.assert_rejected(question)
    await trial.fund(1000)
    await trial.assert_same(question, refused)
    await trial.assert_balance(1100)


async def void(trial: Trial) -> None:
    for verb in (Verb.DEBIT, Verb.CREDIT):
        undecided, done = trial.question(verb, 10), trial.question(verb, 10)
        await trial.assert_done(done)
        before = await trial.bench.balance(trial.owner)
        voided = await trial.ask_one(replace(undecided, void=True))
        await trial.assert_balance(before)
        if isinstance(voided, Done):
            trial.fail("a void is Rejected, or Unknown if the system does not support it")
        if isinstance(voided, Unknown):
            raise NotTried("the system does not support voids: it answers Unknown")
        await trial.assert_rejected(undecided)
        await trial.assert_same(replace(done, void=True), Done())
        await trial.assert_balance(before)


KEYS = (
    Check(
        "duplicate",
        "A repeated question has one effect and gets the same answer",
        "every retry would move the money again",
        "store the answer under (transfer id, version) in the transaction that moves the money,"
        " and look it up first",
        duplicate,
    ),
    Check(
        "concurrent-duplicates",
        "One question from several clients at once has one effect",
        "two workers, or a worker and a late packet, would move the money twice",
        "use a unique key: insert the operation first, and move money only if it was new",
        concurrent_duplicates,
    ),
    Check(
        "twice-in-a-batch",
        "The same key twice in one batch has one effect",
        "a batch with a duplicate would move the money twice",
        "look up the key for each question, not once before the batch",
        twice_in_a_batch,
    ),
    Check(
        "version-in-key",
        "The version is part of the key: one transfer may ask a system several questions",
        "a refund would be taken for a duplicate of its debit, and the money would not come back",
        "use the key (transfer id, version), never the transfer id alone",
        version_in_key,
    ),
    Check(
        "reordering",
        "The order in which questions arrive, and arrive again, does not change the result",
        "a packet that overtakes another would be lost, or done twice",
        "store every key, not only the last one; versions are names and have no order",
        reordering,
    ),
    Check(
        "late-duplicate",
        "A late duplicate after the end changes nothing",
        "a packet from yesterday would debit money that was refunded long ago",
        "keep operations after their transfers have ended; an undone debit stays undone",
        late_duplicate,
    ),
    Check(
        "key-reused",
        "The same key with another amount, verb or owner is Unknown and has no effect",
        "two different questions share one key, so one of them is wrong: neither may move money",
        "store the question beside the answer; if a later one differs, answer"
        ' Unknown("KEY_REUSED", Alarm.PAGE)',
        key_reused,
    ),
    Check(
        "sticky-refusal",
        "A refusal stays a refusal after the account receives money",
        "Tidegate has moved the money elsewhere because of the refusal; a late duplicate that"
        " succeeds would take it a second time",
        "store the refusal under its key, like a success, before you answer Rejected",
        sticky_refusal,
    ),
    Check(
        "void",
        "A void refuses an undecided question for ever, and does not change a decided one",
        "operators who resolve a stuck transfer to Rejected would carry it out instead",
        "if question.void: store a refusal under the key unless it has an answer; a system that"
        " cannot do this answers Unknown",
        void,
    ),
)
