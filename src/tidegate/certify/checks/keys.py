"""The key names one question for ever: repeated, raced, reordered, reused."""

from itertools import permutations

from msgspec.structs import replace

from tidegate.certify.checks.check import Check
from tidegate.certify.trial import NotTried, Trial
from tidegate.core.answers import Alarm, Done, Rejected, Unknown
from tidegate.core.flow import Verb

RACERS = 8


async def duplicate(trial: Trial) -> None:
    for question, after in ((trial.debit(40), 60), (trial.credit(40), 100)):
        await trial.done(question)
        await trial.same(question, Done())
        await trial.same(question, Done())
        await trial.has(after)


async def concurrent_duplicates(trial: Trial) -> None:
    question = trial.debit(10)
    answers = await trial.race(*[question] * RACERS)
    if any(isinstance(answer, Rejected) for answer in answers):
        trial.broken("all who ask under one key hear the same, or Unknown")
    await trial.done(question)
    await trial.has(90)


async def twice_in_a_batch(trial: Trial) -> None:
    question = trial.debit(60)
    answers = await trial.ask(question, question)
    if any(isinstance(answer, Rejected) for answer in answers):
        trial.broken("both get the answer of that key, or Unknown")
    await trial.done(question)
    await trial.has(40)


async def version_in_key(trial: Trial) -> None:
    first = trial.debit(40)
    await trial.done(first)
    await trial.done(replace(first, version=1, verb=Verb.CREDIT, amount=30))
    await trial.done(replace(first, version=2, amount=5))
    await trial.has(85)


async def reordering(trial: Trial) -> None:
    left = 100
    for order in permutations(range(3)):
        sent = [trial.debit(20), trial.credit(15), trial.debit(5)]
        sent[1] = replace(sent[1], transfer_id=sent[0].transfer_id, version=1)
        for turn in (*order, *reversed(order)):
            await trial.done(sent[turn])
        left -= 10
        await trial.has(left)


async def late_duplicate(trial: Trial) -> None:
    question = trial.debit(40)
    undo = trial.undo(question)
    await trial.done(question)
    await trial.done(undo)
    for late in (question, undo, question):
        await trial.one(late)
        await trial.has(100)


async def key_reused(trial: Trial) -> None:
    done, refused = trial.debit(40), trial.debit(101)
    await trial.done(done)
    before = await trial.rejected(refused)
    changed = (
        replace(done, amount=41),
        replace(done, amount=39),
        replace(done, verb=Verb.CREDIT),
        replace(done, party=replace(done.party, owner=trial.other)),
        replace(refused, amount=1),
    )
    for reused in changed:
        await trial.unknown(reused, Alarm.PAGE)
        await trial.has(60)
    await trial.same(done, Done())
    await trial.same(refused, before)


async def sticky_refusal(trial: Trial) -> None:
    question = trial.debit(101)
    refused = await trial.rejected(question)
    await trial.fund(1000)
    await trial.same(question, refused)
    await trial.has(1100)


async def void(trial: Trial) -> None:
    for verb in (Verb.DEBIT, Verb.CREDIT):
        undecided, done = trial.question(verb, 10), trial.question(verb, 10)
        await trial.done(done)
        before = await trial.bench.balance(trial.owner)
        voided = await trial.one(replace(undecided, void=True))
        await trial.has(before)
        if isinstance(voided, Done):
            trial.broken("a void is Rejected, or Unknown where the system cannot promise it")
        if isinstance(voided, Unknown):
            raise NotTried("the system does not take voids: it answers them with Unknown")
        await trial.rejected(undecided)
        await trial.same(replace(done, void=True), Done())
        await trial.has(before)


KEYS = (
    Check(
        "duplicate",
        "A question put twice has one effect and gets the same answer",
        "every retry would move the money again",
        "store the answer under (transfer id, version) in the transaction that moves the money,"
        " and look there first",
        duplicate,
    ),
    Check(
        "concurrent-duplicates",
        "Two who put one question at once make one effect",
        "two workers, or a worker and a late packet, would move the money twice",
        "let a unique key decide: insert the operation first, and move only if that was new",
        concurrent_duplicates,
    ),
    Check(
        "twice-in-a-batch",
        "The same key twice in one batch has one effect",
        "a batch gathered from two places would move the money twice",
        "look for the key again for each question, not once before the batch",
        twice_in_a_batch,
    ),
    Check(
        "version-in-key",
        "The version is part of the key: one transfer may ask a system several things",
        "a refund would be taken for a repetition of its debit, and the money never come back",
        "key by (transfer id, version), never by the transfer id alone",
        version_in_key,
    ),
    Check(
        "reordering",
        "In whatever order questions arrive, and arrive again, the end is the same",
        "a packet that overtakes another would be lost, or done twice",
        "remember every key, not only the last one; versions are names and have no order",
        reordering,
    ),
    Check(
        "late-duplicate",
        "A late duplicate after the end changes nothing",
        "a packet from yesterday would debit what was refunded long ago",
        "keep operations when they are over; an undone debit stays undone",
        late_duplicate,
    ),
    Check(
        "key-reused",
        "The same key with another amount, verb or owner is Unknown and has no effect",
        "two histories would share one key, and one of them is wrong: neither may move money",
        "store what was asked beside the answer; if it differs, answer"
        ' Unknown("KEY_REUSED", Alarm.PAGE)',
        key_reused,
    ),
    Check(
        "sticky-refusal",
        "A refusal stays a refusal after a top-up",
        "Tidegate has sent the money elsewhere on your «no»; a late duplicate that now succeeds"
        " takes it a second time",
        "store the refusal under its key, like a success, before you answer Rejected",
        sticky_refusal,
    ),
    Check(
        "void",
        "A void refuses for ever what is undecided, and leaves what is decided",
        "two people who resolve a stuck transfer to «no» would make it happen instead",
        "if question.void: store a refusal under the key unless an answer is there; a system that"
        " cannot do so answers Unknown",
        void,
    ),
)
