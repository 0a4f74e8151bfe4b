"""The history of a transfer as `tidegate show` prints it."""

from tidegate.commands.timeline import timeline

LIFE = {
    "transfer": {
        "req_id": "01M7FGNRZAMZJQZWEJ6NCZ0000",
        "user_id": 7,
        "flow": "internal_transfer",
        "state": "COMPENSATING",
        "lane": "core",
        "asset": "USDT",
        "amount": "5.000000",
        "parties": {"source": "core/SPOT/7", "target": "ledger/FUNDING/7"},
        "cid": None,
        "attempts": 3,
        "retries": 41,
        "paged": False,
        "error": "unreachable: connection refused",
        "created_at": "2026-11-15T11:49:55.313Z",
        "updated_at": "2026-11-15T11:49:56.313Z",
    },
    "history": [],
    "attempts": [],
}


def test_a_transfer_that_waits_for_an_unreachable_system_shows_why() -> None:
    *_, (last, _) = timeline(LIFE)
    assert "COMPENSATING: waits for core, asked 3 times, 41 retries" in last
    assert "(unreachable: connection refused)" in last
