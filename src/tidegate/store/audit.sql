-- begin: one audit reads everything in one snapshot of the database, and it locks nothing.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- snapshot_time: the time of the snapshot. Only this transaction gets longer timeouts.
SELECT (extract(epoch FROM now()) * 1000000)::bigint,
       set_config('statement_timeout', '300s', true),
       set_config('idle_in_transaction_session_timeout', '120s', true);

-- books: the sums of all accounts of the ledger, by book and asset.
SELECT book, asset_id, sum(available), sum(held)
  FROM ledger_accounts
 GROUP BY book, asset_id;

-- owners: for the next page of owners, their total in the ledger over all books, by asset. An owner
-- who has transfers but no account is included, with 0. Each branch has its own limit, because
-- otherwise every index would be read to its end.
WITH page AS MATERIALIZED (
    SELECT owner
      FROM ((SELECT DISTINCT owner FROM ledger_accounts
              WHERE owner > %(after)s ORDER BY owner LIMIT %(limit)s)
              UNION
            (SELECT DISTINCT owner FROM transfers
              WHERE owner > %(after)s ORDER BY owner LIMIT %(limit)s)
              UNION
            (SELECT DISTINCT owner FROM archived_transfers
              WHERE owner > %(after)s ORDER BY owner LIMIT %(limit)s)) AS known
     ORDER BY owner
     LIMIT %(limit)s
)
SELECT p.owner, coalesce(a.asset_id, 0), coalesce(sum(a.available + a.held), 0)
  FROM page AS p
  LEFT JOIN ledger_accounts AS a ON a.owner = p.owner
 GROUP BY p.owner, a.asset_id;

-- owners_named: the same totals for the given owners.
SELECT owner, asset_id, sum(available + held)
  FROM ledger_accounts
 WHERE owner = ANY(%(owners)s::bigint[])
 GROUP BY owner, asset_id;

-- available: the available amounts in the accounts of the given owners.
SELECT owner, book, asset_id, available
  FROM ledger_accounts
 WHERE owner = ANY(%(owners)s::bigint[]);

-- open_ids: transfers that have not ended. Materialised, because otherwise the whole table is
-- scanned.
WITH open AS MATERIALIZED (
    SELECT id
      FROM open_transfers
)
SELECT id
  FROM open
 WHERE id > %(after)s
 ORDER BY id
 LIMIT %(limit)s;

-- fresh: transfers created in a time range, and whether they have ended. Not found by their ids: an
-- id may be created long before its transfer, or ahead of the clock. None of them is archived yet.
SELECT id, lane IS NULL, (extract(epoch FROM created_at) * 1000000)::bigint
  FROM transfers
 WHERE created_at >= timestamptz 'epoch' + %(from_us)s * interval '1 microsecond'
   AND created_at <= timestamptz 'epoch' + %(upto_us)s * interval '1 microsecond';

-- bitmaps: switch bitmap scans on or off. Only a bitmap scan can use the index of creation times.
-- The plan setting makes the next statements be planned for their actual values: a generic plan
-- cannot know how few rows are new.
SELECT set_config('enable_bitmapscan', %(mode)s, true),
       set_config('plan_cache_mode', %(plans)s, true);

-- ids: transfers by id, and whether they have ended.
SELECT id, lane IS NULL
  FROM every_transfer
 WHERE id > %(after)s
 ORDER BY id
 LIMIT %(limit)s;

-- rows: transfers, and whether their caller's key belongs to them or was deleted on purpose after
-- its time. Not "EXISTS": for that, all keys would be read if the planner expects many transfers.
SELECT t.id, t.owner, t.flow, t.state, t.lane, t.version, t.parties::text, t.asset_id, t.amount,
       t.head_hash,
       t.cid_forgotten_at IS NOT NULL
       OR coalesce(t.id = (SELECT c.transfer_id
                             FROM cids AS c
                            WHERE c.owner = t.owner
                              AND c.cid = coalesce(key_of(t.space, t.cid), t.id::text)), false),
       t.fee
  FROM every_transfer AS t
 WHERE t.id = ANY(%(ids)s::uuid[])
 ORDER BY t.id;

-- answers: the history of transfers, oldest first.
SELECT transfer_id, version, from_state, waypoints, to_state, verb, answer, reason,
       evidence::text, actor, (extract(epoch FROM at) * 1000000)::bigint, hash
  FROM every_history
 WHERE transfer_id = ANY(%(ids)s::uuid[])
 ORDER BY transfer_id, version;

-- operations: the operations of the ledger for transfers.
SELECT transfer_id, version, owner, book, asset_id, verb, amount, result, delta, held_delta,
       balance_after, entry
  FROM ledger_operations
 WHERE transfer_id = ANY(%(ids)s::uuid[]);

-- strays: history rows and operations, in a range of ids, whose transfer does not exist. The range
-- is repeated in the subquery, because otherwise each page would be compared with all transfers.
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

-- seen: the transfers of operations of a core. Read after the core: a transfer's row is committed
-- before the core is asked, so a missing row is an error.
SELECT id, version, asset_id, amount, parties::text
  FROM every_transfer
 WHERE id = ANY(%(ids)s::uuid[]);

-- accounts: accounts that do not agree with their operations. The operations of an account form a
-- chain of balances from zero to the available amount. So each balance must occur as often before
-- an operation as after one; their order need not be known. The sums of the held amounts must agree
-- too. All operations are read. The owners are looked up in a hash, because to compare each
-- operation with a thousand owners takes fifty times as long.
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
     WHERE %(everyone)s OR owner IN (SELECT unnest(%(owners)s::bigint[]))
     GROUP BY owner, book, asset_id, value
)
SELECT owner, book, asset_id
  FROM sides
 GROUP BY owner, book, asset_id
HAVING bool_or(side <> 0) OR sum(held) <> 0
 LIMIT %(limit)s;

-- elsewhere: the amounts in systems that cannot be read, computed from their answers.
SELECT (t.parties -> q.role ->> 2)::bigint, t.asset_id, sum(q.units * t.amount)
  FROM every_history AS h
  JOIN every_transfer AS t ON t.id = h.transfer_id
  JOIN unnest(%(flows)s::text[], %(states)s::text[], %(roles)s::text[], %(units)s::integer[])
    AS q (flow, state, role, units) ON q.flow = h.flow AND q.state = h.from_state
 WHERE h.answer = 'done'
   AND coalesce(h.evidence ->> 'delta', '') <> '0'
   AND t.parties -> q.role ->> 0 <> ALL(%(systems)s::text[])
 GROUP BY 1, 2;

-- watch: everything that the alert rules read, in one snapshot. Open transfers are found by the
-- index of the due, new ones by the index of creation times. Every LIMIT has an ORDER BY, so that
-- the next run finds the same rows: an alert whose row is no longer found is reported as resolved.
WITH open AS MATERIALIZED (
    SELECT id, flow, state, lane, version, retries, updated_at, created_at
      FROM open_transfers
),
created AS MATERIALIZED (
    SELECT t.owner, t.flow, t.state
      FROM transfers AS t
     WHERE t.created_at BETWEEN now() - interval '1 minute' AND now()
)
SELECT 'now' AS kind, '' AS subject, NULL::uuid AS transfer_id, '' AS state,
       (extract(epoch FROM now()) * 1000000)::bigint AS number, 0::bigint AS among,
       NULL::integer AS retries, NULL::float8 AS age_s, NULL::text AS flow, NULL::text AS reason
 UNION ALL
SELECT 'stuck', o.lane, (array_agg(o.id ORDER BY o.updated_at))[1], o.state, count(*), 0,
       (array_agg(o.retries ORDER BY o.updated_at))[1],
       extract(epoch FROM now() - min(o.updated_at))::float8, NULL, NULL
  FROM open AS o
  JOIN unnest(%(target_flows)s::text[], %(target_states)s::text[]) AS q (flow, state)
    ON q.flow = o.flow AND q.state = o.state
 WHERE o.updated_at < now() - %(stuck_s)s * interval '1 second'
 GROUP BY o.lane, o.state
 UNION ALL
(SELECT 'refund', o.id::text, o.id, o.state, f.failures, 0, o.retries,
        extract(epoch FROM now() - o.updated_at)::float8, NULL, NULL
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
 ORDER BY o.id
 LIMIT %(limit)s)
 UNION ALL
-- Transfers that wait for an unreachable system: their own rows do not count its failed probes.
-- They page like other open questions, by the number of probes since the last answer, or by age.
SELECT 'waits', w.lane, (array_agg(w.id ORDER BY w.updated_at))[1], w.state, count(*),
       max(w.probes), (array_agg(w.retries + w.probes ORDER BY w.updated_at))[1],
       extract(epoch FROM now() - min(w.updated_at))::float8, w.flow, min(w.reason)
  FROM (SELECT o.*, a.reason, q.attempts, q.after_s,
               probes_since(a.since, a.attempts, a.probed, o.updated_at) AS probes
          FROM open AS o
          JOIN lane_outages AS a ON a.lane = o.lane
          JOIN unnest(%(asked_flows)s::text[], %(asked_states)s::text[],
                      %(page_attempts)s::integer[], %(page_after_s)s::float8[])
            AS q (flow, state, attempts, after_s) ON q.flow = o.flow AND q.state = o.state) AS w
 WHERE w.probes >= w.attempts
    OR (w.probes > 0 AND w.updated_at <= now() - w.after_s * interval '1 second')
 GROUP BY w.lane, w.flow, w.state
 UNION ALL
SELECT 'old', '', NULL, '', count(*), 0, NULL, NULL, NULL, NULL
  FROM open AS o
 WHERE o.created_at < now() - %(old_s)s * interval '1 second'
   AND (o.flow, o.state) NOT IN (SELECT q.flow, q.state
                                   FROM unnest(%(waits_flows)s::text[], %(waits_states)s::text[])
                                     AS q (flow, state))
 UNION ALL
(SELECT 'asked', i.flow, (array_agg(i.id ORDER BY i.requested_at))[1], '', count(*), 0, NULL,
        extract(epoch FROM now() - min(i.requested_at))::float8, NULL,
        (array_agg(i.error ORDER BY i.requested_at))[1]
  FROM inbox AS i
 WHERE i.outcome IS NULL
   AND i.requested_at < now() - %(old_s)s * interval '1 second'
   AND NOT EXISTS (SELECT FROM halts WHERE resumed_at IS NULL)  -- During a halt they must wait.
 GROUP BY i.flow
 ORDER BY i.flow
 LIMIT %(limit)s)
 UNION ALL
SELECT 'unaudited', '', NULL, '', 0, 0, NULL,
       extract(epoch FROM now() - coalesce(verified_at, begun_at))::float8, NULL, NULL
  FROM audit_sweep
 UNION ALL
(SELECT 'owner', b.owner::text, NULL, '', count(*), 0, NULL, NULL, NULL, NULL
  FROM created AS b
 WHERE b.flow = 'internal_transfer'
 GROUP BY b.owner
HAVING count(*) > %(births)s
 ORDER BY b.owner
 LIMIT %(limit)s);

-- lock_halts: no other transaction can halt or resume until this one ends. Readers do not wait.
LOCK TABLE halts IN SHARE ROW EXCLUSIVE MODE;

-- halt_status: whether the audit's halt for this reason is in force, and whether an operator has
-- resumed since the given time. Other halts do not count, because each can be ended by itself.
SELECT coalesce(bool_or(resumed_at IS NULL AND reason = %(reason)s AND actor = 'audit'), false),
       coalesce(bool_or((extract(epoch FROM resumed_at) * 1000000)::bigint >= %(seen_us)s), false)
  FROM halts;

-- restart_sweep: start the next sweep if the last one has finished and its period is over.
UPDATE audit_sweep
   SET begun_at = now(),
       after_id = '00000000-0000-0000-0000-000000000000',
       after_owner = -9223372036854775808,
       transfers_read = 0,
       owners_read = 0
 WHERE after_id = %(last_id)s::uuid
   AND after_owner = %(last_owner)s::bigint
   AND begun_at <= now() - %(period_s)s * interval '1 second';

-- sweep: the progress of the sweep, and the planner's estimate of the totals.
SELECT after_id, after_owner, transfers_read, owners_read,
       extract(epoch FROM now() - begun_at)::float8,
       (SELECT sum(greatest(reltuples, 0))::bigint
          FROM pg_class
         WHERE oid IN ('transfers'::regclass, 'archived_transfers'::regclass)),
       (SELECT greatest(reltuples, 0)::bigint
          FROM pg_class
         WHERE oid = 'ledger_accounts'::regclass)
  FROM audit_sweep;

-- advance_sweep: move the progress from where it was read to the end of a slice. It changes nothing
-- if another process has moved it.
UPDATE audit_sweep
   SET after_id = %(to_id)s::uuid,
       after_owner = %(to_owner)s::bigint,
       transfers_read = transfers_read + %(transfers)s::bigint,
       owners_read = owners_read + %(owners)s::bigint,
       verified_at = CASE WHEN %(to_id)s::uuid = %(last_id)s::uuid
                           AND %(to_owner)s::bigint = %(last_owner)s::bigint
                          THEN begun_at ELSE verified_at END
 WHERE after_id = %(from_id)s::uuid
   AND after_owner = %(from_owner)s::bigint;

-- rescue: transfers of a slice that are held but are in no handover list are added to the index of
-- the due. This happens only if lists were deleted by hand. If a transfer is listed in the
-- meantime, the index entry does no harm.
UPDATE transfers AS t
   SET held = false,
       due_lane = t.lane
 WHERE t.id > %(from_id)s::uuid
   AND t.id <= %(to_id)s::uuid
   AND t.held
   AND t.lane IS NOT NULL
   AND NOT EXISTS (SELECT FROM handovers AS h WHERE t.id = ANY(h.ids))
RETURNING t.id, t.lane, t.state;

-- verified: record that a full audit of one snapshot found no violation.
UPDATE audit_sweep
   SET verified_at = greatest(verified_at, to_timestamp(%(at_us)s / 1000000.0));

-- sweep_age: the age of the last complete verification.
SELECT extract(epoch FROM now() - coalesce(verified_at, begun_at))::float8
  FROM audit_sweep;

-- owner_accounts: the given owners whose accounts do not agree with the operations of their own
-- transfers. An owner who was paid by another one is a suspect too, so all of them are returned:
-- the wrong one may be the last. Found by the index of owners and the key of the operations, so
-- that a few owners cost a few rows. LATERAL with OFFSET, because a join might read all operations.
WITH steps AS (
    SELECT o.owner, o.book, o.asset_id, o.balance_after, o.delta, o.held_delta
      FROM every_transfer AS t
     CROSS JOIN LATERAL (
           SELECT *
             FROM ledger_operations AS x
            WHERE x.transfer_id = t.id
           OFFSET 0) AS o
     WHERE t.owner = ANY(%(owners)s::bigint[])
       AND o.owner = ANY(%(owners)s::bigint[])
       AND (o.delta <> 0 OR o.held_delta <> 0)
),
sides AS (
    SELECT owner, book, asset_id, balance_after - delta AS value, 1 AS side, held_delta AS held
      FROM steps
     UNION ALL
    SELECT owner, book, asset_id, balance_after, -1, 0
      FROM steps
     UNION ALL
    SELECT owner, book, asset_id, available, 1, -held
      FROM ledger_accounts
     WHERE owner = ANY(%(owners)s::bigint[])
     UNION ALL
    SELECT owner, book, asset_id, 0, -1, 0
      FROM ledger_accounts
     WHERE owner = ANY(%(owners)s::bigint[])
),
walked AS (
    SELECT owner, book, asset_id, sum(side) AS side, sum(held) AS held
      FROM sides
     GROUP BY owner, book, asset_id, value
)
SELECT DISTINCT owner
  FROM (SELECT owner
          FROM walked
         GROUP BY owner, book, asset_id
        HAVING bool_or(side <> 0) OR sum(held) <> 0) AS wrong;
