"""Regular check whether the database accepts writes, before a request finds that it does not."""

from tidegate.core.ports import NotWritable, StoreFault, StoreUnavailable
from tidegate.core.sql import load
from tidegate.store.postgres import PostgresStore
from tidegate.store.transaction import PostgresTransaction

STATEMENTS = load("tidegate.store", "writable.sql")


async def check_writable(store: PostgresStore) -> None:
    """Raise StoreUnavailable unless writes are accepted; `store.trouble` records the reason."""
    try:
        await _check(store)
    except NotWritable:
        raise  # `PostgresStore.session` has recorded the reason.
    except StoreUnavailable:
        store.trouble = "unreachable"
        raise
    except StoreFault:
        # The check itself was refused, for example because temporary tables are not allowed. This
        # does not mean that other writes fail, so they must not be refused.
        store.trouble = None
        raise
    store.trouble = None


async def _check(store: PostgresStore) -> None:
    """Write only after a write has failed. A full disk may still accept small rows, so only a file
    that must grow shows whether there is space again.
    """
    async with store.session() as pipe:
        [(read_only,)] = await PostgresTransaction(pipe).fetch(STATEMENTS["read_only"], {})
        if read_only:
            raise NotWritable("no session can write", "read-only")
    if store.trouble is not None:
        async with store.transaction() as tx:
            await tx.fetch(STATEMENTS["grow_file"], {})
