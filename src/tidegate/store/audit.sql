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

-- owners: what each of the next owners holds in the ledger, all books together. An owner with
-- transfers and without any account is one of them, and holds nothing. Each branch ends by itself:
-- of all owners together, every index would be read to its end.
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
      FROM open_transfers
)
SELECT id
  FROM open
 WHERE id > %(after)s
 ORDER BY id
 LIMIT %(limit)s;

-- fresh: transfers created within a span of time, and whether they have ended. Not by their ids: an
-- id may be made long before its transfer, or ahead of the clock. None of them is archived yet.
SELECT id, lane IS NULL, (extract(epoch FROM created_at) * 1000000)::bigint
  FROM transfers
 WHERE created_at >= timestamptz 'epoch' + %(from_us)s * interval '1 microsecond'
   AND created_at <= timestamptz 'epoch' + %(upto_us)s * interval '1 microsecond';

-- bitmaps: whether the index of what is new may be used, which only such scans can. What follows is
-- then planned for its own values: a plan for any values cannot know how few of the rows are new.
SELECT set_config('enable_bitmapscan', %(mode)s, true),
       set_config('plan_cache_mode', %(plans)s, true);

-- ids: transfers by id, and whether they have ended.
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
                              AND c.cid = coalesce(key_of(t.space, t.cid), t.id::text)), false),
       t.fee
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
       balance_after, entry
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
SELECT id, version, asset_id, amount, parties::text
  FROM every_transfer
 WHERE id = ANY(%(ids)s::uuid[]);

-- accounts: accounts that do not follow from their operations. Operations of one account, whatever
-- their order, are a walk from zero to what is available: each balance is left as often as it is
-- arrived at. The sums of what is held must agree as well. All operations are read; the owners are
-- looked up in a hash, because comparing each operation with a thousand owners takes fifty times
-- as long.
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
-- the due, what is new by the index of the times of creation. Limits have an order, so that the
-- next look finds the same ones: what it does not find is told to be over.
WITH open AS MATERIALIZED (
    SELECT id, flow, state, lane, version, retries, updated_at, created_at
      FROM open_transfers
),
born AS MATERIALIZED (
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
-- What waits for a system that is unreachable: its own row says nothing of that. By the number of
-- probes since its last answer, or by its age, somebody is called as for any other question.
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
   AND NOT EXISTS (SELECT FROM halts WHERE resumed_at IS NULL)  -- Then they are meant to wait.
 GROUP BY i.flow
 ORDER BY i.flow
 LIMIT %(limit)s)
 UNION ALL
SELECT 'unaudited', '', NULL, '', 0, 0, NULL,
       extract(epoch FROM now() - coalesce(verified_at, begun_at))::float8, NULL, NULL
  FROM audit_sweep
 UNION ALL
(SELECT 'owner', b.owner::text, NULL, '', count(*), 0, NULL, NULL, NULL, NULL
  FROM born AS b
 WHERE b.flow = 'internal_transfer'
 GROUP BY b.owner
HAVING count(*) > %(births)s
 ORDER BY b.owner
 LIMIT %(limit)s);

-- alone: nobody pulls or releases the brake until this transaction ends; who reads it goes on.
LOCK TABLE halts IN SHARE ROW EXCLUSIVE MODE;

-- brake: whether it is pulled for this very reason, and whether somebody has released it since a
-- moment. Another's halt is no reason to keep ours to ourselves: it may be ended before ours.
SELECT coalesce(bool_or(resumed_at IS NULL AND reason = %(reason)s AND actor = 'audit'), false),
       coalesce(bool_or((extract(epoch FROM resumed_at) * 1000000)::bigint >= %(seen_us)s), false)
  FROM halts;

-- sweep_anew: a sweep that is over is followed by the next one when its time has come.
UPDATE audit_sweep
   SET begun_at = now(),
       after_id = '00000000-0000-0000-0000-000000000000',
       after_owner = -9223372036854775808,
       transfers_read = 0,
       owners_read = 0
 WHERE after_id = %(last_id)s::uuid
   AND after_owner = %(last_owner)s::bigint
   AND begun_at <= now() - %(period_s)s * interval '1 second';

-- sweep: how far it has come, and how much there is by the planner's estimate.
SELECT after_id, after_owner, transfers_read, owners_read,
       extract(epoch FROM now() - begun_at)::float8,
       (SELECT sum(greatest(reltuples, 0))::bigint
          FROM pg_class
         WHERE oid IN ('transfers'::regclass, 'archived_transfers'::regclass)),
       (SELECT greatest(reltuples, 0)::bigint
          FROM pg_class
         WHERE oid = 'ledger_accounts'::regclass)
  FROM audit_sweep;

-- sweep_on: from where it was read to where a slice has come, unless another process has moved it.
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

-- rescue: transfers of a slice that are held and in no list go into the index of the due. There are
-- none, unless somebody has deleted lists by hand. One that is listed meanwhile does no harm in the
-- index either.
UPDATE transfers AS t
   SET held = false,
       due_lane = t.lane
 WHERE t.id > %(from_id)s::uuid
   AND t.id <= %(to_id)s::uuid
   AND t.held
   AND t.lane IS NOT NULL
   AND NOT EXISTS (SELECT FROM handovers AS h WHERE t.id = ANY(h.ids))
RETURNING t.id, t.lane, t.state;

-- verified: a full audit at one moment has found nothing wrong.
UPDATE audit_sweep
   SET verified_at = greatest(verified_at, to_timestamp(%(at_us)s / 1000000.0));

-- sweep_age: for how long not everything has been verified.
SELECT extract(epoch FROM now() - coalesce(verified_at, begun_at))::float8
  FROM audit_sweep;

-- owner_accounts: those of some owners whose accounts do not follow from the operations of these
-- owners' transfers. An owner who was paid by another is a suspect too, so all are returned: the
-- one that is wrong may be the last. Found by the index of the owners and the key of the
-- operations, so that a few owners cost a few rows. LATERAL with OFFSET, or all operations might be
-- read for a join.
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
        HAVING bool_or(side <> 0) OR sum(held) <> 0) AS odd;
