"""An adapter in under 60 lines: a piggy bank in SQLite that keeps each answer under its key."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegate import Alarm, Answer, Done, Question, Rejected, Unknown, Verb

TABLE = """CREATE TABLE IF NOT EXISTS operations (id, version, owner, asset,
    asked, undoes, why, moved, PRIMARY KEY (id, version))"""
SELECT = "SELECT version, asked, undoes, why, moved FROM operations WHERE id = ?"
BALANCE = "SELECT coalesce(sum(moved), 0) FROM operations WHERE owner = ? AND asset = ?"


class PiggyBank:
    name, reversible = "piggy bank", True

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute(TABLE)

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        with self.db:  # One transaction: the money and the answers, or neither.
            self.db.execute("BEGIN IMMEDIATE")
            return [self.answer(question) for question in questions]

    def answer(self, q: Question) -> Answer:
        asked = repr((q.verb, q.party, q.asset_id, q.amount, q.undoes))
        kept = {row[0]: row[1:] for row in self.db.execute(SELECT, [q.transfer_id.hex])}
        if q.version in kept:  # The key decides: what was said is said again.
            was, _, why, _ = kept[q.version]
            said = Rejected(why) if why else Done()
            return said if was in (asked, "") else Unknown("KEY_REUSED", Alarm.PAGE)
        verdict = self.undo(q, kept) if q.undoes is not None and not q.void else self.judge(q)
        return verdict if isinstance(verdict, Unknown) else self.keep(q, q.version, asked, *verdict)

    def judge(self, q: Question) -> tuple[str, int] | Unknown:  # Why not, and what it moves.
        if q.verb not in (Verb.DEBIT, Verb.CREDIT) and not q.void:
            return Unknown(f"a piggy bank knows no {q.verb}", Alarm.PAGE)
        moved = q.amount if q.verb is Verb.CREDIT else -q.amount
        if q.void or not 0 < q.amount < 2**62:
            return "UNDONE" if q.void else "INVALID_AMOUNT", 0
        [balance] = self.db.execute(BALANCE, [q.party.owner, q.asset_id]).fetchone()
        return ("", moved) if balance + moved >= 0 else ("INSUFFICIENT_BALANCE", 0)

    def undo(self, q: Question, kept: dict[Any, Any]) -> tuple[str, int] | Unknown:
        _, _, why, moved = kept.get(q.undoes, ("", None, "UNDONE", 0))
        if q.verb is not Verb.REFUND or (q.expect_done and why):
            return Unknown("UNDO_UNFOUNDED", Alarm.HALT)
        if q.undoes not in kept:  # A tombstone: should the original come late, it is refused.
            self.keep(q, q.undoes, "", "UNDONE", 0)
        undone = any(row[1] == q.undoes and row[3] for row in kept.values())
        return "", 0 if undone else -moved

    def keep(self, q: Question, version: Any, asked: str, why: str, moved: int) -> Answer:
        row = (q.transfer_id.hex, version, q.party.owner, q.asset_id, asked, q.undoes, why, moved)
        self.db.execute("INSERT INTO operations VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return Rejected(why) if why else Done()
