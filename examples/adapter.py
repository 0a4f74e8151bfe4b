"""An adapter in under 60 lines: a piggy bank in SQLite that stores each answer under its key."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegate import Alarm, Answer, Done, Question, Rejected, Unknown, Verb

TABLE = """CREATE TABLE IF NOT EXISTS operations (id, version, owner, asset,
    question, undoes, code, moved, PRIMARY KEY (id, version))"""
SELECT = "SELECT version, question, undoes, code, moved FROM operations WHERE id = ?"
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
        text = repr((q.verb, q.party, q.asset_id, q.amount, q.undoes))
        stored = {row[0]: row[1:] for row in self.db.execute(SELECT, [q.transfer_id.hex])}
        if q.version in stored:  # A known key always gets the stored answer.
            question, _, code, _ = stored[q.version]
            answer = Rejected(code) if code else Done()
            return answer if question in (text, "") else Unknown("KEY_REUSED", Alarm.PAGE)
        result = self.undo(q, stored) if q.undoes is not None and not q.void else self.judge(q)
        return result if isinstance(result, Unknown) else self.store(q, q.version, text, *result)

    def judge(self, q: Question) -> tuple[str, int] | Unknown:  # Refusal code, amount moved.
        if q.verb not in (Verb.DEBIT, Verb.CREDIT) and not q.void:
            return Unknown(f"a piggy bank does not support {q.verb}", Alarm.PAGE)
        moved = q.amount if q.verb is Verb.CREDIT else -q.amount
        if q.void or not 0 < q.amount < 2**62:
            return "UNDONE" if q.void else "INVALID_AMOUNT", 0
        [balance] = self.db.execute(BALANCE, [q.party.owner, q.asset_id]).fetchone()
        return ("", moved) if balance + moved >= 0 else ("INSUFFICIENT_BALANCE", 0)

    def undo(self, q: Question, stored: dict[Any, Any]) -> tuple[str, int] | Unknown:
        _, _, code, moved = stored.get(q.undoes, ("", None, "UNDONE", 0))
        if q.verb is not Verb.REFUND or (q.expect_done and code):
            return Unknown("UNDO_UNFOUNDED", Alarm.HALT)
        if q.undoes not in stored:  # A tombstone: if the original arrives later, it is refused.
            self.store(q, q.undoes, "", "UNDONE", 0)
        undone = any(row[1] == q.undoes and row[3] for row in stored.values())
        return "", 0 if undone else -moved

    def store(self, q: Question, version: Any, text: str, code: str, moved: int) -> Answer:
        row = (q.transfer_id.hex, version, q.party.owner, q.asset_id, text, q.undoes, code, moved)
        self.db.execute("INSERT INTO operations VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return Rejected(code) if code else Done()
