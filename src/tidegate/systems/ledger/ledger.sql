-- lock: every account of a batch, in one order, before anything beside them is read; what is not
-- there cannot be locked, and comes back.
WITH locked AS MATERIALIZED (
    SELECT a.owner, a.book, a.asset_id
      FROM ledger_accounts AS a
      JOIN unnest(%(owners)s::bigint[], %(books)s::text[], %(assets)s::integer[])
        AS k (owner, book, asset_id)
        ON a.owner = k.owner AND a.book = k.book AND a.asset_id = k.asset_id
     ORDER BY a.owner, a.book, a.asset_id
       FOR NO KEY UPDATE OF a
)
SELECT * FROM unnest(%(owners)s::bigint[], %(books)s::text[], %(assets)s::integer[])
EXCEPT
SELECT * FROM locked;

-- open: in the same order; an account that another session opens first is then its account.
INSERT INTO ledger_accounts (owner, book, asset_id)
SELECT k.owner, k.book, k.asset_id
  FROM unnest(%(owners)s::bigint[], %(books)s::text[], %(assets)s::integer[])
    AS k (owner, book, asset_id)
 ORDER BY k.owner, k.book, k.asset_id
ON CONFLICT DO NOTHING;

-- look: balances and known operations, in a snapshot taken after the accounts were locked.
SELECT a.available, a.held, a.status,
       o.owner, o.book, o.asset_id, o.verb, o.amount, o.undoes, o.result, o.reason, o.delta,
       o.held_delta, o.balance_after
  FROM unnest(%(ids)s::uuid[], %(versions)s::integer[], %(owners)s::bigint[], %(books)s::text[],
              %(assets)s::integer[])
       WITH ORDINALITY AS q (id, version, owner, book, asset_id, place)
  LEFT JOIN ledger_accounts AS a
    ON a.owner = q.owner AND a.book = q.book AND a.asset_id = q.asset_id
  LEFT JOIN ledger_operations AS o
    ON o.transfer_id = q.id AND o.version = q.version
 ORDER BY q.place;

-- look_undone: all operations of the transfers whose earlier operation is to be undone.
SELECT o.transfer_id, o.version, o.owner, o.book, o.asset_id, o.verb, o.amount, o.undoes, o.result,
       o.reason, o.delta, o.held_delta, o.balance_after
  FROM ledger_operations AS o
 WHERE o.transfer_id = ANY(%(ids)s::uuid[]);

-- apply: balances move only by what the insert of the operations returns.
WITH applied AS (
    INSERT INTO ledger_operations (transfer_id, version, owner, book, asset_id, verb, amount,
                                   undoes, result, reason, delta, held_delta, balance_after)
    SELECT *
      FROM unnest(
               %(ids)s::uuid[], %(versions)s::integer[], %(owners)s::bigint[], %(books)s::text[],
               %(assets)s::integer[], %(verbs)s::text[], %(amounts)s::numeric[],
               %(undoes)s::integer[], %(results)s::text[], %(reasons)s::text[],
               %(deltas)s::numeric[], %(held_deltas)s::numeric[], %(balances)s::numeric[])
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

-- set_status: an operator's word; it counts from the next operation on.
UPDATE ledger_accounts
   SET status = %(status)s,
       version = version + 1
 WHERE owner = %(owner)s
   AND book = %(book)s
   AND asset_id = %(asset)s
RETURNING status;

-- balances: an owner's accounts.
SELECT owner, book, asset_id, available, held, status
  FROM ledger_accounts
 WHERE owner = %(owner)s
 ORDER BY book, asset_id;

-- totals: what all accounts hold, by book and asset.
SELECT book, asset_id, sum(available), sum(held)
  FROM ledger_accounts
 GROUP BY book, asset_id
 ORDER BY book, asset_id;
