"""Whether the database takes writes: asked all the time, and not first by a request."""

from tidegate.core.ports import NotWritable, StoreFault, StoreUnavailable
from tidegate.core.sql import load
from tidegate.store.postgres import PostgresStore
from tidegate.store.transaction import PostgresTransaction

STATEMENTS = load("tidegate.store", "writable.sql")


async def check_writable(store: PostgresStore) -> None:
    """Raise StoreUnavailable unless writes are taken. `store.trouble` keeps why they are not."""
    try:
        await _check(store)
    except NotWritable:
        raise  # The session has noted it.
    except StoreUnavailable:
        store.trouble = "unreachable"
        raise
    except StoreFault:
        # The check itself is refused, as where temporary tables are not allowed. That says nothing
        # about the others' writes, which must not be refused for it.
        store.trouble = None
        raise
    store.trouble = None


async def _check(store: PostgresStore) -> None:
    """Something is written only after a write has failed: a full disk still takes small rows, so
    that only a file that must grow can tell whether there is space again.
    """
    async with store.session() as pipe:
        [(read_only,)] = await PostgresTransaction(pipe).fetch(STATEMENTS["read_only"], {})
        if read_only:
            raise NotWritable("no session can write", "read-only")
    if store.trouble is not None:
        async with store.transaction() as tx:
            await tx.fetch(STATEMENTS["take_room"], {})
