-- begin: the transaction's one time, the brake, the floor of ids, and its number, by which its fate
-- can be asked for when the reply to its COMMIT is lost; nothing is locked yet. What follows in it
-- is planned once per session: for few rows, planning costs as much as all the rest.
SELECT (extract(epoch FROM now()) * 1000000)::bigint,
       EXISTS (SELECT FROM halts WHERE resumed_at IS NULL),
       (SELECT floor FROM id_floor WHERE one),
       pg_current_xact_id()::text,
       set_config('plan_cache_mode', %(plans)s, true);

-- brief: for the rest of the transaction, which waits for locks that somebody is known to hold.
SELECT set_config('lock_timeout', %(lock_ms)s, true);

-- halted: read before each ask of what no claim has just given out.
SELECT EXISTS (SELECT FROM halts WHERE resumed_at IS NULL);

-- halt: a row of its own, whatever is in force already.
INSERT INTO halts (reason, actor)
VALUES (%(reason)s, %(actor)s)
RETURNING id;

-- halts: those in force, oldest first.
SELECT id, reason, actor, (extract(epoch FROM at) * 1000000)::bigint
  FROM halts
 WHERE resumed_at IS NULL
 ORDER BY id
 LIMIT %(limit)s;

-- resume: ends the halts named, or all in force if none is named, and says who did and why. Locked
-- by the update: of two who end the same halt, the second ends nothing.
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

-- askable: the installed tables, none while halted. Read before each ask of what no claim has just
-- given out. Without a parameter, so that it is planned once per session and not each time.
SELECT f.flow, f.checksum
  FROM flow_tables AS f
 WHERE NOT EXISTS (SELECT FROM halts WHERE resumed_at IS NULL);

-- lapse: what was handed over inside a process and is still open when its lease is over goes into
-- the index of the due. A list is deleted when none of its transfers is held any more. Of a row
-- that somebody has locked this is not known, so its list stays. Whoever holds a row again has
-- listed it again, in the same transaction. Lists are looked at when they are a second old: most of
-- what they name has ended by then, so there are few of them.
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
     -- OFFSET 0 and an array: each row is found by its id, whatever the planner expects.
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

-- due: the lanes in which a claim may find something, by the same rules. It locks nothing, so that
-- a look in vain, as most are, costs one entry of the index per lane and flow.
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

-- claim: lease what is due, of flows whose installed table is ours. SKIP LOCKED keeps workers
-- apart; correctness is the version's. Each flow is read by its own part of the index, so that a
-- backlog of a flow that we do not know costs nothing. Rows locked beyond the limit are free again
-- when the statement ends.
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

-- lock: a statement of its own, so that the statements after it see what its waiting was for. What
-- is not there as it was read comes back, and most is. It has moved, or at the same version others
-- have claimed it since: then with what is counted by now, which a late answer must not take back.
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

-- answers: a part of record and insert: one history row per answer. Here as there, what many rows
-- of a batch have in common is said once, and a row names it by its place.
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

-- handed: a part of record and create: the list of what this transaction hands over inside the
-- process. A row may be held only if it is listed.
INSERT INTO handovers (until, ids)
SELECT now() + %(lease_s)s * interval '1 second', array_agg(r.id)
  FROM unnest(%(ids)s::uuid[], %(kinds)s::integer[]) AS r (id, kind)
 WHERE (%(helds)s::boolean[])[r.kind]
HAVING count(*) > 0;

-- tried: why the last question stays open, after record or create; the newest few are kept.
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

-- record: compare-and-set on the version, with one history row per answer, in one statement. The
-- rows were locked in their order by a statement before, so that the order here does not matter.
WITH moved AS (
    UPDATE transfers AS t
       SET state = m.state,
           lane = m.lane,
           due_lane = CASE WHEN m.held THEN NULL ELSE m.lane END,
           held = coalesce(m.held, false),
           -- A row that waits under a deadline is due at the deadline at the latest. At an end it
           -- stays as it was: a column that changes takes the row out of its page.
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
           -- A transfer that has an end of its own goes by that.
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
listed AS ({handed})
-- Fewer or more than were locked: that divides by zero, and so nothing of this has happened.
SELECT 1 / (count(*) = %(count)s)::integer FROM moved;

-- reserve: the keys of transfers that are created next. In their order, because two batches with
-- the same keys in another order would deadlock. A key that exists fails the statement (23505).
INSERT INTO cids (owner, cid, fingerprint, transfer_id)
SELECT k.owner, k.cid, k.fingerprint, k.id
  FROM unnest(%(owners)s::bigint[], %(keys)s::text[], %(fingerprints)s::bytea[], %(ids)s::uuid[])
    AS k (owner, cid, fingerprint, id)
 ORDER BY k.owner, k.cid;

-- create: transfers whose keys are reserved, with the answers that they got on the way.
WITH answered AS ({answers}),
listed AS ({handed})
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

-- look: what is known under which of the keys, and the time for new ids, which is above the floor
-- even if the clock is not: both are read at one moment. One row at the least; most keys are new,
-- and a row for each of them would tell nothing. A key may lead to the archive; one statement sees
-- one moment, so that a transfer on its way there is not overlooked. A key without a transfer was
-- reserved by the inbox.
SELECT greatest((extract(epoch FROM now()) * 1000000)::bigint,
                (SELECT (floor_ms + 1) * 1000 FROM id_floor WHERE one)),
       k.place,
       c.fingerprint,
       c.transfer_id,
       i.refusal,
       {transfer}
  FROM (SELECT) AS once
  LEFT JOIN (unnest(%(owners)s::bigint[], %(cids)s::text[])
                 WITH ORDINALITY AS k (owner, cid, place)
             JOIN cids AS c ON c.owner = k.owner AND c.cid = k.cid
             LEFT JOIN every_transfer AS t ON t.id = c.transfer_id
             LEFT JOIN inbox AS i ON i.id = c.transfer_id)
    ON true;

-- fates: whether every one of these transactions was aborted. Of one that is too long ago nothing
-- is known, and it counts as one that may have happened.
SELECT coalesce(bool_and(pg_xact_status(x.xid::xid8) = 'aborted'), false)
  FROM unnest(%(xids)s::text[]) AS x (xid);

-- find: transfers as they stand, for the engine, which asks about none that ended long ago.
SELECT {transfer}
  FROM transfers AS t
 WHERE t.id = ANY(%(ids)s::uuid[]);

-- ended: the few of many that somebody else has brought to an end.
SELECT {transfer}
  FROM transfers AS t
 WHERE t.id = ANY(%(ids)s::uuid[])
   AND t.lane IS NULL;

-- release: what was leased and not asked about is due now, unless somebody has moved it since.
UPDATE transfers AS t
   SET due_at = now(),
       due_lane = t.lane,
       held = false
  FROM (SELECT x.id
          FROM transfers AS x
          JOIN unnest(%(ids)s::uuid[], %(versions)s::integer[]) AS r (id, version)
            ON x.id = r.id AND x.version = r.version
         -- Not «IS NOT NULL», for which all that is open would be read by the index of the due.
         WHERE coalesce(x.lane, '') <> ''
         ORDER BY x.id
           FOR NO KEY UPDATE OF x) AS held
 WHERE t.id = held.id;

-- note_outage: one more attempt to reach a system has failed. The row is this process's own. What
-- processes that are gone have left is deleted here, so that the table stays small.
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

-- end_outage: the system has answered this process.
DELETE FROM lane_troubles
 WHERE lane = %(lane)s
   AND process = %(process)s;

-- outages: a handful of rows, whatever waits behind them.
SELECT lane,
       (extract(epoch FROM since) * 1000000)::bigint,
       attempts,
       ARRAY(SELECT (extract(epoch FROM p) * 1000000)::bigint FROM unnest(probed) AS p),
       reason
  FROM lane_outages;

-- mend_clock: has the clock been set back? The one row is locked, so that of several processes one
-- notices. Then what waits is due now, and has waited since now: no answer is from the future. To
-- ask early moves nothing, because correctness is the version's. A row that somebody just writes is
-- not waited for: its due time is written as well. Without a step no transfer is read. Requests in
-- the inbox are leased like transfers, and mended like them.
WITH clock AS MATERIALIZED (
    SELECT CASE WHEN seen > now() + interval '2 seconds'
                THEN extract(epoch FROM seen - now()) ELSE 0 END::float8 AS behind_s
      FROM (SELECT greatest(latest, to_timestamp(%(seen_us)s / 1000000.0)) AS seen
              FROM store_clock
               FOR UPDATE) AS k
),
kept AS (
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
-- A list that would be looked at too late is looked at by the next scan.
listed AS (
    UPDATE handovers
       SET until = now()
      FROM clock
     WHERE behind_s > 0
       AND until > now()
),
asked AS MATERIALIZED (
    SELECT id
      FROM inbox
     WHERE outcome IS NULL
       AND due_at > now() + coalesce(%(beyond_s)s::float8, 0) * interval '1 second'
       AND (%(beyond_s)s::float8 IS NOT NULL OR (SELECT behind_s > 0 FROM clock))
     LIMIT %(limit)s
       FOR NO KEY UPDATE SKIP LOCKED
),
taken AS (
    UPDATE inbox AS i
       SET due_at = now()
      FROM asked
     WHERE i.id = asked.id
    RETURNING i.id
)
-- As many as of one kind at the most: whoever asks goes on as long as one of them is at its limit.
SELECT behind_s,
       greatest((SELECT count(*) FROM early), (SELECT count(*) FROM early_held),
                (SELECT count(*) FROM taken))
  FROM clock;

-- assets: few, read at start and when told.
SELECT id, code, decimals, status, internal_transfer_enabled, min_transfer_amount,
       max_transfer_amount
  FROM assets
 ORDER BY id;

-- migrated: how far, to be compared with what this program's statements need.
SELECT coalesce(max(number), 0) FROM migrations;

-- flows: what is installed, to be compared with what this program would run.
SELECT flow, checksum FROM flow_tables;

-- forget_marks: what another process has surpassed says nothing more; the furthest stays.
DELETE FROM core_positions
 WHERE core = %(core)s
   AND position < (SELECT max(position) FROM core_positions WHERE core = %(core)s);
