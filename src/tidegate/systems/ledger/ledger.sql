-- lock: every account of a batch with its balance, in one order, before other rows are read. If the
-- lock had to wait for a row, it returns the newest version of that row. An account that does not
-- exist is not locked and not returned.
SELECT k.ordinal, a.available, a.held, a.status
  FROM ledger_accounts AS a
  JOIN unnest(%(owners)s::bigint[], %(kinds)s::integer[])
       WITH ORDINALITY AS k (owner, kind, ordinal)
    ON a.owner = k.owner
   AND a.book = (%(books)s::text[])[k.kind]
   AND a.asset_id = (%(assets)s::integer[])[k.kind]
 ORDER BY a.owner, a.book, a.asset_id
   FOR NO KEY UPDATE OF a;

-- open: insert the missing accounts, in the same order as the locks. If another session inserted
-- the account first, that row is used. An account of an unknown asset is not opened; the unknown
-- assets are returned. Existing accounts need no such check: it was made when they were opened.
WITH wanted AS (
    SELECT k.owner,
           (%(books)s::text[])[k.kind] AS book,
           (%(assets)s::integer[])[k.kind] AS asset_id
      FROM unnest(%(owners)s::bigint[], %(kinds)s::integer[]) AS k (owner, kind)
),
opened AS (
    INSERT INTO ledger_accounts (owner, book, asset_id)
    SELECT w.owner, w.book, w.asset_id
      FROM wanted AS w
      JOIN assets AS s ON s.id = w.asset_id
     ORDER BY w.owner, w.book, w.asset_id
    ON CONFLICT DO NOTHING
)
SELECT asset_id FROM wanted
EXCEPT
SELECT id FROM assets;

-- look: the stored operations of these keys, in a snapshot taken after the accounts were locked. A
-- key with a fee has two entries and returns two rows, even if the question now has no fee.
SELECT o.transfer_id, o.version, o.owner, o.book, o.asset_id, o.verb, o.amount, o.undoes, o.result,
       o.reason, o.delta, o.held_delta, o.balance_after, o.entry
  FROM unnest(%(ids)s::uuid[], %(versions)s::integer[]) AS q (id, version)
  JOIN ledger_operations AS o
    ON o.transfer_id = q.id AND o.version = q.version;

-- look_undone: all operations of the transfers that have an operation to undo.
SELECT o.transfer_id, o.version, o.owner, o.book, o.asset_id, o.verb, o.amount, o.undoes, o.result,
       o.reason, o.delta, o.held_delta, o.balance_after, o.entry
  FROM ledger_operations AS o
 WHERE o.transfer_id = ANY(%(ids)s::uuid[]);

-- apply: balances change only by the rows that the insert of the operations returns. A change is
-- the amount times the sign of its kind (1, 0 or -1). Amounts beyond 64 bits have their own array.
WITH applied AS (
    INSERT INTO ledger_operations (transfer_id, version, owner, book, asset_id, verb, amount,
                                   undoes, result, reason, delta, held_delta, balance_after,
                                   entry)
    SELECT o.id,
           (%(versions)s::integer[])[o.kind],
           o.owner,
           (%(books)s::text[])[o.kind],
           (%(assets)s::integer[])[o.kind],
           (%(verbs)s::text[])[o.kind],
           coalesce(o.amount, o.large_amount),
           (%(undoes)s::integer[])[o.kind],
           (%(results)s::text[])[o.kind],
           (%(reasons)s::text[])[o.kind],
           coalesce(o.amount, o.large_amount) * (%(signs)s::integer[])[o.kind],
           coalesce(o.amount, o.large_amount) * (%(held_signs)s::integer[])[o.kind],
           coalesce(o.balance_after, o.large_balance),
           (%(entries)s::smallint[])[o.kind]
      FROM unnest(
               %(ids)s::uuid[], %(kinds)s::integer[], %(owners)s::bigint[],
               %(amounts)s::bigint[], %(large_amounts)s::numeric[],
               %(balances)s::bigint[], %(large_balances)s::numeric[])
        AS o (id, kind, owner, amount, large_amount, balance_after, large_balance)
    RETURNING owner, book, asset_id, delta, held_delta
),
change AS MATERIALIZED (
    SELECT owner, book, asset_id, sum(delta) AS delta, sum(held_delta) AS held_delta
      FROM applied
     GROUP BY owner, book, asset_id
    HAVING sum(delta) <> 0 OR sum(held_delta) <> 0
)
UPDATE ledger_accounts AS a
   SET available = a.available + c.delta,
       held = a.held + c.held_delta,
       version = a.version + 1
  FROM change AS c
 WHERE a.owner = c.owner
   AND a.book = c.book
   AND a.asset_id = c.asset_id;

-- set_status: an operator sets the status of an account. It applies from the next operation on.
UPDATE ledger_accounts
   SET status = %(status)s,
       version = version + 1
 WHERE owner = %(owner)s
   AND book = %(book)s
   AND asset_id = %(asset)s
RETURNING status;

-- balances: the accounts of one owner.
SELECT owner, book, asset_id, available, held, status
  FROM ledger_accounts
 WHERE owner = %(owner)s
 ORDER BY book, asset_id;

-- totals: the sums of all accounts, by book and asset.
SELECT book, asset_id, sum(available), sum(held)
  FROM ledger_accounts
 GROUP BY book, asset_id
 ORDER BY book, asset_id;
