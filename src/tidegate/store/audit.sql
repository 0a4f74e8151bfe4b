-- begin: everything that one audit reads of the database is of one moment, and it locks nothing.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- stand: the moment is now; this transaction alone may take its time.
SELECT (extract(epoch FROM now()) * 1000000)::bigint,
       set_config('statement_timeout', '300s', true),
       set_config('idle_in_transaction_session_timeout', '120s', true);

-- books: what all accounts of the ledger hold, by book and asset.
SELECT book, asset_id, sum(available), sum(held)
  FROM ledger_accounts
 GROUP BY book, asset_id;

-- owners: what each of the next owners holds in the ledger, all books together.
WITH page AS MATERIALIZED (
    SELECT DISTINCT owner
      FROM ledger_accounts
     WHERE owner > %(after)s
     ORDER BY owner
     LIMIT %(limit)s
)
SELECT a.owner, a.asset_id, sum(a.available + a.held)
  FROM ledger_accounts AS a
  JOIN page AS p ON p.owner = a.owner
 GROUP BY a.owner, a.asset_id;

-- owners_named: the same of certain owners.
SELECT owner, asset_id, sum(available + held)
  FROM ledger_accounts
 WHERE owner = ANY(%(owners)s::bigint[])
 GROUP BY owner, asset_id;

-- available: what the accounts of certain owners say.
SELECT owner, book, asset_id, available
  FROM ledger_accounts
 WHERE owner = ANY(%(owners)s::bigint[]);

-- open_ids: transfers that have not ended. Materialised, or the whole table is walked.
WITH open AS MATERIALIZED (
    SELECT id
      FROM transfers
     WHERE lane IS NOT NULL
)
SELECT id
  FROM open
 WHERE id > %(after)s
 ORDER BY id
 LIMIT %(limit)s;

-- ids: transfers by id, which is the order of their births, and whether they have ended.
SELECT id, lane IS NULL
  FROM every_transfer
 WHERE id > %(after)s
 ORDER BY id
 LIMIT %(limit)s;

-- rows: transfers, and whether their caller's key leads to them, or was forgotten in due time. Not
-- «EXISTS», for which all keys would be read once the planner expects many transfers.
SELECT t.id, t.owner, t.flow, t.state, t.lane, t.version, t.parties::text, t.asset_id, t.amount,
       t.head_hash,
       t.cid_forgotten_at IS NOT NULL
       OR coalesce(t.id = (SELECT c.transfer_id
                             FROM cids AS c
                            WHERE c.owner = t.owner
                              AND c.cid = coalesce(t.cid, t.id::text)), false)
  FROM every_transfer AS t
 WHERE t.id = ANY(%(ids)s::uuid[])
 ORDER BY t.id;

-- answers: their history, oldest first.
SELECT transfer_id, version, from_state, waypoints, to_state, verb, answer, reason,
       evidence::text, actor, (extract(epoch FROM at) * 1000000)::bigint, hash
  FROM every_history
 WHERE transfer_id = ANY(%(ids)s::uuid[])
 ORDER BY transfer_id, version;

-- operations: what the ledger did for them.
SELECT transfer_id, version, owner, book, asset_id, verb, amount, result, delta, held_delta,
       balance_after
  FROM ledger_operations
 WHERE transfer_id = ANY(%(ids)s::uuid[]);

-- strays: answers and operations, in a range of ids, of transfers that do not exist. The range is
-- said twice, or each page of it would be compared with all transfers there are.
SELECT DISTINCT f.transfer_id
  FROM (SELECT transfer_id FROM every_history
         WHERE transfer_id > %(after)s AND transfer_id <= %(upto)s
         UNION ALL
        SELECT transfer_id FROM ledger_operations
         WHERE transfer_id > %(after)s AND transfer_id <= %(upto)s) AS f (transfer_id)
 WHERE NOT EXISTS (SELECT
                     FROM every_transfer AS t
                    WHERE t.id = f.transfer_id
                      AND t.id > %(after)s AND t.id <= %(upto)s)
 LIMIT %(limit)s;

-- seen: the transfers of operations that a core has done. Read after the core was read: a row is
-- there before anything is asked about it.
SELECT id, version, asset_id, amount
  FROM every_transfer
 WHERE id = ANY(%(ids)s::uuid[]);

-- accounts: accounts that do not follow from their operations. Operations of one account, whatever
-- their order, are a walk from zero to what is available: each balance is left as often as it is
-- arrived at. The sums of what is held must agree as well.
WITH steps AS (
    SELECT owner, book, asset_id, balance_after - delta AS value, 1 AS side, held_delta AS held
      FROM ledger_operations
     WHERE delta <> 0 OR held_delta <> 0
     UNION ALL
    SELECT owner, book, asset_id, balance_after, -1, 0
      FROM ledger_operations
     WHERE delta <> 0 OR held_delta <> 0
     UNION ALL
    SELECT owner, book, asset_id, available, 1, -held
      FROM ledger_accounts
     UNION ALL
    SELECT owner, book, asset_id, 0, -1, 0
      FROM ledger_accounts
),
sides AS (
    SELECT owner, book, asset_id, sum(side) AS side, sum(held) AS held
      FROM steps
     WHERE %(everyone)s OR owner = ANY(%(owners)s::bigint[])
     GROUP BY owner, book, asset_id, value
)
SELECT owner, book, asset_id
  FROM sides
 GROUP BY owner, book, asset_id
HAVING bool_or(side <> 0) OR sum(held) <> 0
 LIMIT %(limit)s;

-- elsewhere: what systems that cannot be read hold, by the answers that they gave us.
SELECT (t.parties -> q.role ->> 2)::bigint, t.asset_id, sum(q.units * t.amount)
  FROM every_history AS h
  JOIN every_transfer AS t ON t.id = h.transfer_id
  JOIN unnest(%(flows)s::text[], %(states)s::text[], %(roles)s::text[], %(units)s::integer[])
    AS q (flow, state, role, units) ON q.flow = h.flow AND q.state = h.from_state
 WHERE h.answer = 'done'
   AND coalesce(h.evidence ->> 'delta', '') <> '0'
   AND t.parties -> q.role ->> 0 <> ALL(%(systems)s::text[])
 GROUP BY 1, 2;

-- watch: all that the alert rules look at, in one snapshot. What is open is found by the index of
-- the due, what is new by the time that an id begins with.
WITH open AS MATERIALIZED (
    SELECT id, flow, state, lane, version, updated_at, created_at
      FROM transfers
     WHERE lane IS NOT NULL
),
born AS MATERIALIZED (
    SELECT t.owner, t.flow, t.state
      FROM transfers AS t
     WHERE t.id >= (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - 60000), 12, '0')
                    || repeat('0', 20))::uuid
)
SELECT 'now' AS kind, '' AS subject, NULL::uuid AS transfer_id, '' AS state,
       (extract(epoch FROM now()) * 1000000)::bigint AS number, 0::bigint AS among
 UNION ALL
SELECT 'stuck', o.lane, (array_agg(o.id ORDER BY o.updated_at))[1], o.state, count(*), 0
  FROM open AS o
  JOIN unnest(%(target_flows)s::text[], %(target_states)s::text[]) AS q (flow, state)
    ON q.flow = o.flow AND q.state = o.state
 WHERE o.updated_at < now() - %(stuck_s)s * interval '1 second'
 GROUP BY o.lane, o.state
 UNION ALL
(SELECT 'refund', o.id::text, o.id, o.state, f.failures, 0
  FROM open AS o
  JOIN unnest(%(refund_flows)s::text[], %(refund_states)s::text[]) AS q (flow, state)
    ON q.flow = o.flow AND q.state = o.state
 CROSS JOIN LATERAL (
       SELECT count(*) AS failures
         FROM attempts AS a
        WHERE a.transfer_id = o.id
          AND a.version > coalesce((SELECT max(h.version)
                                      FROM history AS h
                                     WHERE h.transfer_id = o.id
                                       AND h.to_state = o.state
                                       AND h.from_state <> o.state), -1)
       ) AS f
 WHERE f.failures >= %(refund_failures)s
 LIMIT %(limit)s)
 UNION ALL
SELECT 'old', '', NULL, '', count(*), 0
  FROM open AS o
 WHERE o.created_at < now() - %(old_s)s * interval '1 second'
 UNION ALL
(SELECT 'owner', b.owner::text, NULL, '', count(*), 0
  FROM born AS b
 WHERE b.flow = 'internal_transfer'
 GROUP BY b.owner
HAVING count(*) > %(births)s
 LIMIT %(limit)s)
 UNION ALL
SELECT 'ended', '', NULL, '', count(*) FILTER (WHERE s.place = 'source'), count(*)
  FROM born AS b
  JOIN flow_states AS s ON s.flow = b.flow AND s.state = b.state
 WHERE s.is_end;

-- alone: nobody pulls or releases the brake until this transaction ends; who reads it goes on.
LOCK TABLE halts IN SHARE ROW EXCLUSIVE MODE;

-- brake: whether it is pulled, and whether somebody has released it since a moment.
SELECT coalesce(bool_or(resumed_at IS NULL), false),
       coalesce(bool_or((extract(epoch FROM resumed_at) * 1000000)::bigint >= %(seen_us)s), false)
  FROM halts;
