-- begin: the time of the transaction, whether a halt is in force, the floor of ids, and the
-- transaction's number. If the reply to COMMIT is lost, its outcome is looked up by that number.
-- Nothing is locked yet. The plan setting makes the session plan each statement only once: for few
-- rows, planning costs as much as everything else.
SELECT (extract(epoch FROM now()) * 1000000)::bigint,
       EXISTS (SELECT FROM halts WHERE resumed_at IS NULL),
       (SELECT floor FROM id_floor WHERE one),
       pg_current_xact_id()::text,
       set_config('plan_cache_mode', %(plans)s, true);

-- short_lock_timeout: for the rest of the transaction. Used if another transaction is known to
-- hold the locks.
SELECT set_config('lock_timeout', %(lock_ms)s, true);

-- halted: read before each ask about transfers that were not just claimed.
SELECT EXISTS (SELECT FROM halts WHERE resumed_at IS NULL);

-- halt: adds a row, even if another halt is in force.
INSERT INTO halts (reason, actor)
VALUES (%(reason)s, %(actor)s)
RETURNING id;

-- halts: the halts in force, oldest first.
SELECT id, reason, actor, (extract(epoch FROM at) * 1000000)::bigint
  FROM halts
 WHERE resumed_at IS NULL
 ORDER BY id
 LIMIT %(limit)s;

-- resume: end the halts named, or all in force if none is named, and record who ended them and
-- why. The update locks the rows: if two callers end the same halt, the second ends nothing.
WITH ended AS (
    UPDATE halts
       SET resumed_at = now(),
           resumed_reason = %(reason)s,
           resumed_by = %(actor)s
     WHERE resumed_at IS NULL
       AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[]))
    RETURNING id, reason, actor, at
)
SELECT id, reason, actor, (extract(epoch FROM at) * 1000000)::bigint
  FROM ended
 ORDER BY id;

-- askable: the installed flow tables; none while halted. Read before each ask about transfers that
-- were not just claimed. It has no parameter, so that it is planned once per session.
SELECT f.flow, f.checksum
  FROM flow_tables AS f
 WHERE NOT EXISTS (SELECT FROM halts WHERE resumed_at IS NULL);

-- lapse: a transfer that was handed over inside a process, and is still open when its lease ends,
-- is added to the index of due transfers. A list is deleted when none of its transfers is held any
-- more. If a row is locked, this is not known, so its list stays. A process that holds a row again
-- lists it again in the same transaction. A list is read when it is a second old: by then most of
-- its transfers have ended, so few lists remain.
WITH looked AS MATERIALIZED (
    SELECT number, until, ids
      FROM handovers
     WHERE until <= now() + greatest(%(lease_s)s::float8 - 1, 0) * interval '1 second'
     ORDER BY until
     LIMIT %(lists)s
       FOR UPDATE SKIP LOCKED
),
held AS MATERIALIZED (
    SELECT l.number, l.until, u.id
      FROM looked AS l
     CROSS JOIN LATERAL unnest(l.ids) AS u (id)
     -- OFFSET 0 and an array make the planner find each row by its id, whatever it estimates.
     CROSS JOIN LATERAL (
               SELECT
                 FROM transfers AS t
                WHERE t.id = u.id
                  AND t.held
                  AND t.lane IS NOT NULL
               OFFSET 0
           ) AS t
),
free AS MATERIALIZED (
    SELECT t.id
      FROM (SELECT DISTINCT id FROM held WHERE until <= now()) AS h
     CROSS JOIN LATERAL (
               SELECT x.id
                 FROM transfers AS x
                WHERE x.id = h.id
                  AND x.held
                  AND x.lane IS NOT NULL
                  FOR NO KEY UPDATE SKIP LOCKED
           ) AS t
),
lapsed AS (
    UPDATE transfers AS t
       SET held = false,
           due_lane = t.lane
     WHERE t.id = ANY(ARRAY(SELECT id FROM free))
)
DELETE FROM handovers
 WHERE number = ANY(ARRAY(
           SELECT number FROM looked
           EXCEPT
           SELECT number FROM held WHERE id NOT IN (SELECT id FROM free)));

-- due: the lanes in which a claim may find transfers, by the same rules as in claim. It locks
-- nothing. Most calls find nothing, and such a call reads one index entry per lane and flow.
SELECT l.lane
  FROM unnest(%(lanes)s::text[]) AS l (lane)
 WHERE NOT EXISTS (SELECT FROM halts WHERE resumed_at IS NULL)
   AND EXISTS (
           SELECT
             FROM unnest(%(flows)s::text[], %(checksums)s::text[]) AS k (flow, checksum)
            CROSS JOIN LATERAL (
                      SELECT
                        FROM transfers AS t
                       WHERE t.due_lane = l.lane
                         AND t.flow = k.flow
                         AND t.due_at <= now()
                       LIMIT 1
                  ) AS d
            WHERE k.checksum = (SELECT f.checksum FROM flow_tables AS f WHERE f.flow = k.flow)
       )
 ORDER BY l.lane;

-- claim: lease due transfers of the flows whose installed table is ours. SKIP LOCKED keeps workers
-- from waiting for each other; correctness comes from the version check in record. Each flow is
-- read by its own part of the index, so that a backlog of an unknown flow costs nothing. Rows that
-- were locked beyond the limit are unlocked when the statement ends.
WITH due AS MATERIALIZED (
    SELECT d.id
      FROM unnest(%(flows)s::text[], %(checksums)s::text[]) AS k (flow, checksum)
     CROSS JOIN LATERAL (
               SELECT t.id, t.due_at
                 FROM transfers AS t
                WHERE t.due_lane = %(lane)s
                  AND t.flow = k.flow
                  AND t.due_at <= now()
                ORDER BY t.due_at
                LIMIT %(limit)s
                  FOR NO KEY UPDATE SKIP LOCKED
           ) AS d
     WHERE NOT EXISTS (SELECT FROM halts WHERE resumed_at IS NULL)
       AND k.checksum = (SELECT f.checksum FROM flow_tables AS f WHERE f.flow = k.flow)
     ORDER BY d.due_at
     LIMIT %(limit)s
)
UPDATE transfers AS t
   SET due_at = now() + %(lease_s)s * interval '1 second',
       attempts = t.attempts + 1
  FROM due
 WHERE t.id = due.id
RETURNING {transfer};

-- lock: a separate statement, so that the statements after it see what changed while it waited.
-- It returns only the rows that are not as the caller read them; most are unchanged. Such a row has
-- moved, or another process has claimed it since at the same version. In the second case the
-- current counters are returned, because a late answer must not overwrite them with older values.
WITH locked AS MATERIALIZED (
    SELECT id, version, attempts, retries, paged
      FROM transfers
     WHERE id = ANY(%(ids)s::uuid[])
     ORDER BY id
       FOR NO KEY UPDATE
),
changed AS MATERIALIZED (
    SELECT *
      FROM unnest(%(ids)s::uuid[], %(versions)s::integer[], %(attempts)s::integer[])
        AS r (id, version, attempts)
    EXCEPT
    SELECT id, version, attempts FROM locked
)
SELECT c.id, l.attempts, l.retries, l.paged
  FROM changed AS c
  LEFT JOIN locked AS l ON l.id = c.id AND l.version = c.version;

-- answers: a part of record and create. It adds one history row per answer. As in these statements,
-- values that many rows share are sent once, and each row refers to them by an index.
INSERT INTO history (transfer_id, version, flow, from_state, waypoints, to_state, verb, answer,
                     reason, evidence, actor, at, hash)
SELECT h.id,
       (%(history_versions)s::integer[])[h.kind],
       (%(history_flows)s::text[])[h.kind],
       (%(froms)s::text[])[h.kind],
       (%(waypoints)s::text[])[h.kind],
       (%(tos)s::text[])[h.kind],
       (%(verbs)s::text[])[h.kind],
       (%(answers)s::text[])[h.kind],
       (%(reasons)s::text[])[h.kind],
       h.evidence::jsonb,
       (%(actors)s::text[])[h.kind],
       now(),
       h.hash
  FROM unnest(
           %(history_ids)s::uuid[], %(history_kinds)s::integer[], %(evidences)s::text[],
           %(history_hashes)s::bytea[]
       ) AS h (id, kind, evidence, hash);

-- handover_list: a part of record and create. It lists the transfers that this transaction hands
-- over inside the process. A row may be held only if it is listed.
INSERT INTO handovers (until, ids)
SELECT now() + %(lease_s)s * interval '1 second', array_agg(r.id)
  FROM unnest(%(ids)s::uuid[], %(kinds)s::integer[]) AS r (id, kind)
 WHERE (%(helds)s::boolean[])[r.kind]
HAVING count(*) > 0;

-- add_attempts: after record or create, store why the last question stays open. Only the newest
-- attempts are kept: a newer one overwrites the oldest.
INSERT INTO attempts (transfer_id, slot, version, retry, reason, at)
SELECT a.id, a.slot, a.version, a.retry, a.reason, now()
  FROM unnest(
           %(attempt_ids)s::uuid[], %(attempt_slots)s::smallint[],
           %(attempt_versions)s::integer[], %(attempt_retries)s::integer[],
           %(attempt_reasons)s::text[]
       ) AS a (id, slot, version, retry, reason)
ON CONFLICT (transfer_id, slot) DO UPDATE
   SET version = excluded.version,
       retry = excluded.retry,
       reason = excluded.reason,
       at = excluded.at;

-- record: compare-and-set on the version, with one history row per answer, in one statement. An
-- earlier statement has locked the rows in id order, so the order here does not matter.
WITH moved AS (
    UPDATE transfers AS t
       SET state = m.state,
           lane = m.lane,
           due_lane = CASE WHEN m.held THEN NULL ELSE m.lane END,
           held = coalesce(m.held, false),
           -- A row that waits under a deadline is due at the deadline at the latest. When a
           -- transfer ends, due_at keeps its value: to change an indexed column would prevent a
           -- heap-only update.
           due_at = CASE WHEN m.lane IS NULL THEN t.due_at ELSE least(
               now() + coalesce(m.delay_s, 0) * interval '1 second',
               CASE WHEN m.new_version = m.version THEN t.deadline_at
                    WHEN m.deadline_s IS NOT NULL
                    THEN coalesce(t.expires_at, now() + m.deadline_s * interval '1 second')
               END) END,
           version = m.new_version,
           attempts = coalesce(m.attempts, 0),
           retries = coalesce(m.retries, 0),
           paged = coalesce(m.paged, false),
           undoes = m.undoes,
           parties = coalesce(m.parties::jsonb, t.parties),
           error = m.error,
           head_hash = m.hash,
           -- If the transfer itself expires, that time replaces the state's deadline.
           deadline_at = CASE WHEN m.new_version = m.version THEN t.deadline_at
                              WHEN m.deadline_s IS NOT NULL
                              THEN coalesce(t.expires_at,
                                            now() + m.deadline_s * interval '1 second') END,
           updated_at = CASE WHEN m.new_version = m.version THEN t.updated_at ELSE now() END
      FROM (
               SELECT r.*,
                      (%(delays)s::float8[])[r.kind] AS delay_s,
                      (%(versions)s::integer[])[r.kind] AS version,
                      (%(states)s::text[])[r.kind] AS state,
                      (%(lanes)s::text[])[r.kind] AS lane,
                      (%(helds)s::boolean[])[r.kind] AS held,
                      (%(new_versions)s::integer[])[r.kind] AS new_version,
                      (%(attempts)s::integer[])[r.kind] AS attempts,
                      (%(retries)s::integer[])[r.kind] AS retries,
                      (%(pageds)s::boolean[])[r.kind] AS paged,
                      (%(undoes)s::integer[])[r.kind] AS undoes,
                      (%(errors)s::text[])[r.kind] AS error,
                      (%(deadlines)s::float8[])[r.kind] AS deadline_s
                 FROM unnest(
                          %(ids)s::uuid[], %(kinds)s::integer[], %(hashes)s::bytea[],
                          %(parties)s::text[]
                      ) AS r (id, kind, hash, parties)
           ) AS m
     WHERE t.id = m.id
       AND t.version = m.version
    RETURNING t.id
),
answered AS ({answers}),
listed AS ({handover_list})
-- If fewer or more rows moved than were locked, the division by zero rolls everything back.
SELECT 1 / (count(*) = %(count)s)::integer FROM moved;

-- reserve: insert the keys of the transfers that are created next. Sorted, because two batches
-- with the same keys in different orders would deadlock. An existing key fails the statement
-- (23505).
INSERT INTO cids (owner, cid, fingerprint, transfer_id)
SELECT k.owner, k.cid, k.fingerprint, k.id
  FROM unnest(%(owners)s::bigint[], %(keys)s::text[], %(fingerprints)s::bytea[], %(ids)s::uuid[])
    AS k (owner, cid, fingerprint, id)
 ORDER BY k.owner, k.cid;

-- create: insert transfers whose keys are reserved, with the answers that they have already got.
WITH answered AS ({answers}),
listed AS ({handover_list})
INSERT INTO transfers (id, owner, flow, state, lane, due_lane, held, due_at, version, attempts,
                       retries, paged, parties, asset_id, amount, fee, undoes, parent, detail,
                       cid, space, head_hash, error, trace, deadline_at, expires_at, created_at,
                       updated_at)
SELECT b.id,
       b.owner,
       (%(flows)s::text[])[b.kind],
       (%(states)s::text[])[b.kind],
       (%(lanes)s::text[])[b.kind],
       CASE WHEN (%(helds)s::boolean[])[b.kind] THEN NULL ELSE (%(lanes)s::text[])[b.kind] END,
       coalesce((%(helds)s::boolean[])[b.kind], false),
       least(now() + coalesce((%(delays)s::float8[])[b.kind], 0) * interval '1 second',
             d.deadline_at),
       (%(new_versions)s::integer[])[b.kind],
       coalesce((%(attempts)s::integer[])[b.kind], 0),
       coalesce((%(retries)s::integer[])[b.kind], 0),
       coalesce((%(pageds)s::boolean[])[b.kind], false),
       b.parties::jsonb,
       (%(assets)s::integer[])[b.kind],
       coalesce(b.amount, b.large_amount),
       coalesce((%(fees)s::numeric[])[b.kind], 0),
       (%(undoes)s::integer[])[b.kind],
       b.parent,
       (%(details)s::text[])[b.kind]::jsonb,
       b.cid,
       (%(spaces)s::text[])[b.kind],
       b.hash,
       (%(errors)s::text[])[b.kind],
       b.trace,
       d.deadline_at,
       e.expires_at,
       now(),
       now()
  FROM unnest(
           %(ids)s::uuid[], %(kinds)s::integer[], %(owners)s::bigint[], %(parties)s::text[],
           %(amounts)s::bigint[], %(large_amounts)s::numeric[], %(parents)s::uuid[],
           %(hashes)s::bytea[], %(traces)s::text[], %(cids)s::text[],
           %(lives)s::float8[], %(expiries)s::bigint[]
       ) AS b (id, kind, owner, parties, amount, large_amount, parent, hash, trace, cid,
               lives_s, expires_us)
 CROSS JOIN LATERAL (
           SELECT coalesce(timestamptz 'epoch' + b.expires_us * interval '1 microsecond',
                           now() + b.lives_s * interval '1 second') AS expires_at
       ) AS e
 CROSS JOIN LATERAL (
           SELECT CASE WHEN (%(deadlines)s::float8[])[b.kind] IS NOT NULL
                       THEN coalesce(e.expires_at, now() + (%(deadlines)s::float8[])[b.kind]
                                                           * interval '1 second')
                  END AS deadline_at
       ) AS d;

-- look: the known keys with their transfers, and the time for new ids. That time is above the
-- floor even if the clock is not. Most keys are new and return no row; the first column is always
-- returned, so there is at least one row. A key may belong to an archived transfer. One statement
-- reads one snapshot, so that a transfer that is just being archived is not missed. A key without a
-- transfer was reserved by the inbox.
SELECT greatest((extract(epoch FROM now()) * 1000000)::bigint,
                (SELECT (floor_ms + 1) * 1000 FROM id_floor WHERE one)),
       k.number,
       c.fingerprint,
       c.transfer_id,
       i.refusal,
       {transfer}
  FROM (SELECT) AS once
  LEFT JOIN (unnest(%(owners)s::bigint[], %(cids)s::text[])
                 WITH ORDINALITY AS k (owner, cid, number)
             JOIN cids AS c ON c.owner = k.owner AND c.cid = k.cid
             LEFT JOIN every_transfer AS t ON t.id = c.transfer_id
             LEFT JOIN inbox AS i ON i.id = c.transfer_id)
    ON true;

-- all_aborted: whether every one of these transactions was aborted. The status of a very old
-- transaction is not known; it counts as one that may have committed.
SELECT coalesce(bool_and(pg_xact_status(x.xid::xid8) = 'aborted'), false)
  FROM unnest(%(xids)s::text[]) AS x (xid);

-- find: current rows of transfers, for the engine. It never needs archived ones.
SELECT {transfer}
  FROM transfers AS t
 WHERE t.id = ANY(%(ids)s::uuid[]);

-- ended: those of the transfers that have ended, which another process may have done. Usually few.
SELECT {transfer}
  FROM transfers AS t
 WHERE t.id = ANY(%(ids)s::uuid[])
   AND t.lane IS NULL;

-- release: transfers that were leased and not asked about are due now, unless they have moved.
UPDATE transfers AS t
   SET due_at = now(),
       due_lane = t.lane,
       held = false
  FROM (SELECT x.id
          FROM transfers AS x
          JOIN unnest(%(ids)s::uuid[], %(versions)s::integer[]) AS r (id, version)
            ON x.id = r.id AND x.version = r.version
         -- Not "IS NOT NULL": for that, all open transfers would be read by the index of the due.
         WHERE coalesce(x.lane, '') <> ''
         ORDER BY x.id
           FOR NO KEY UPDATE OF x) AS held
 WHERE t.id = held.id;

-- note_outage: record that one more attempt to reach a system has failed. Each process has its own
-- row. Rows of processes that have ended are deleted here, so that the table stays small.
WITH gone AS (
    DELETE FROM lane_troubles
     WHERE updated_at < now() - interval '1 day'
       AND (lane, process) <> (%(lane)s, %(process)s)
)
INSERT INTO lane_troubles AS k (lane, process, since, attempts, probed, reason, updated_at)
VALUES (%(lane)s, %(process)s, now(), %(attempts)s, ARRAY[now()], %(reason)s, now())
ON CONFLICT (lane, process) DO UPDATE
   SET since = CASE WHEN excluded.attempts = 1 THEN now() ELSE k.since END,
       attempts = excluded.attempts,
       probed = CASE WHEN excluded.attempts = 1 THEN excluded.probed
                     ELSE k.probed[greatest(cardinality(k.probed) - %(kept)s + 2, 1):] || now() END,
       reason = excluded.reason,
       updated_at = now();

-- end_outage: the system has answered this process, so its row is deleted.
DELETE FROM lane_troubles
 WHERE lane = %(lane)s
   AND process = %(process)s;

-- outages: the unreachable lanes. One row per lane, however many transfers wait.
SELECT lane,
       (extract(epoch FROM since) * 1000000)::bigint,
       attempts,
       ARRAY(SELECT (extract(epoch FROM p) * 1000000)::bigint FROM unnest(probed) AS p),
       reason
  FROM lane_outages;

-- mend_clock: check whether the clock was set back. The single row of store_clock is locked, so
-- that only one of several processes repairs. Transfers that wait are then due now, and count as
-- waiting since now, because no answer can be from the future. To ask too early does no harm: the
-- version check still holds. Locked rows are skipped, because their transaction writes the due time
-- anyway. If the clock was not set back, no transfer is read. Requests in the inbox are leased like
-- transfers, so they are repaired too.
WITH clock AS MATERIALIZED (
    SELECT CASE WHEN seen > now() + interval '2 seconds'
                THEN extract(epoch FROM seen - now()) ELSE 0 END::float8 AS behind_s
      FROM (SELECT greatest(latest, to_timestamp(%(seen_us)s / 1000000.0)) AS seen
              FROM store_clock
               FOR UPDATE) AS k
),
clock_saved AS (
    UPDATE store_clock
       SET latest = now()
      FROM clock
     WHERE latest < now() - interval '4 seconds'
        OR behind_s > 0
),
early AS MATERIALIZED (
    SELECT id
      FROM transfers
     WHERE due_lane IS NOT NULL
       AND (due_at > now() + coalesce(%(beyond_s)s::float8, 0) * interval '1 second'
            OR updated_at > now() + interval '2 seconds')
       AND (%(beyond_s)s::float8 IS NOT NULL OR (SELECT behind_s > 0 FROM clock))
     LIMIT %(limit)s
       FOR NO KEY UPDATE SKIP LOCKED
),
early_held AS MATERIALIZED (
    SELECT t.id
      FROM (SELECT DISTINCT unnest(h.ids) AS id
              FROM handovers AS h
             WHERE %(beyond_s)s::float8 IS NOT NULL
                OR (SELECT behind_s > 0 FROM clock)) AS l
     CROSS JOIN LATERAL (
               SELECT x.id
                 FROM transfers AS x
                WHERE x.id = l.id
                  AND x.held
                  AND x.lane IS NOT NULL
                  AND (x.due_at > now() + coalesce(%(beyond_s)s::float8, 0) * interval '1 second'
                       OR x.updated_at > now() + interval '2 seconds')
                  FOR NO KEY UPDATE SKIP LOCKED
           ) AS t
     LIMIT %(limit)s
),
mended AS (
    UPDATE transfers AS t
       SET due_at = now(),
           due_lane = t.lane,
           held = false,
           updated_at = least(t.updated_at, now())
     WHERE t.id = ANY(ARRAY(SELECT id FROM early UNION ALL SELECT id FROM early_held))
       AND EXISTS (SELECT FROM early UNION ALL SELECT FROM early_held)
    RETURNING t.id
),
-- A handover list that would be read too late is read by the next scan.
listed AS (
    UPDATE handovers
       SET until = now()
      FROM clock
     WHERE behind_s > 0
       AND until > now()
),
early_requests AS MATERIALIZED (
    SELECT id
      FROM inbox
     WHERE outcome IS NULL
       AND due_at > now() + coalesce(%(beyond_s)s::float8, 0) * interval '1 second'
       AND (%(beyond_s)s::float8 IS NOT NULL OR (SELECT behind_s > 0 FROM clock))
     LIMIT %(limit)s
       FOR NO KEY UPDATE SKIP LOCKED
),
mended_requests AS (
    UPDATE inbox AS i
       SET due_at = now()
      FROM early_requests
     WHERE i.id = early_requests.id
    RETURNING i.id
)
-- The largest of the three counts: the caller repeats this while any of them is at the limit.
SELECT behind_s,
       greatest((SELECT count(*) FROM early), (SELECT count(*) FROM early_held),
                (SELECT count(*) FROM mended_requests))
  FROM clock;

-- assets: few rows, read at start and on request.
SELECT id, code, decimals, status, internal_transfer_enabled, min_transfer_amount,
       max_transfer_amount
  FROM assets
 ORDER BY id;

-- migrated: the number of the last migration, compared with the one that this program needs.
SELECT coalesce(max(number), 0) FROM migrations;

-- flows: the installed flows, compared with the flows of this program.
SELECT flow, checksum FROM flow_tables;

-- forget_marks: delete positions that are lower than another process's. The highest one is kept.
DELETE FROM core_positions
 WHERE core = %(core)s
   AND position < (SELECT max(position) FROM core_positions WHERE core = %(core)s);
