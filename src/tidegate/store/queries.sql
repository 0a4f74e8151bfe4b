-- begin: the transaction's one time, and whether the brake is on; nothing is locked yet. What
-- follows in it is planned once per session: for few rows, planning costs as much as all the rest.
SELECT (extract(epoch FROM now()) * 1000000)::bigint,
       EXISTS (SELECT FROM halts WHERE resumed_at IS NULL),
       set_config('plan_cache_mode', %(plans)s, true);

-- halted: read before each ask of what no claim has just given out.
SELECT EXISTS (SELECT FROM halts WHERE resumed_at IS NULL);

-- halt: the one halt in force stays the first one; a second cause does not replace it.
INSERT INTO halts (reason, actor)
VALUES (%(reason)s, %(actor)s)
ON CONFLICT DO NOTHING;

-- resume: ends the halt in force, and says who did and why.
UPDATE halts
   SET resumed_at = now(),
       resumed_reason = %(reason)s,
       resumed_by = %(actor)s
 WHERE resumed_at IS NULL;

-- claim: lease what is due. SKIP LOCKED keeps workers apart; correctness is the version's.
WITH due AS MATERIALIZED (
    SELECT id
      FROM transfers
     WHERE lane = %(lane)s
       AND due_at <= now()
       AND NOT EXISTS (SELECT FROM halts WHERE resumed_at IS NULL)
     ORDER BY due_at
     LIMIT %(limit)s
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE transfers AS t
   SET due_at = now() + %(lease_s)s * interval '1 second',
       attempts = t.attempts + 1
  FROM due
 WHERE t.id = due.id
RETURNING {transfer};

-- lock: a statement of its own, so that the statements after it see what its waiting was for.
SELECT id, version
  FROM transfers
 WHERE id = ANY(%(ids)s::uuid[])
 ORDER BY id
   FOR NO KEY UPDATE;

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

-- tried: why the last question stays open, part of record and of insert; the newest few are kept.
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
           -- A row that waits under a deadline is due at the deadline at the latest.
           due_at = least(
               now() + coalesce(m.delay_s, 0) * interval '1 second',
               CASE WHEN m.new_version = m.version THEN t.deadline_at
                    WHEN m.deadline_s IS NOT NULL
                    THEN coalesce(t.expires_at, now() + m.deadline_s * interval '1 second') END),
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
                      (%(versions)s::integer[])[r.kind] AS version,
                      (%(states)s::text[])[r.kind] AS state,
                      (%(lanes)s::text[])[r.kind] AS lane,
                      (%(new_versions)s::integer[])[r.kind] AS new_version,
                      (%(attempts)s::integer[])[r.kind] AS attempts,
                      (%(retries)s::integer[])[r.kind] AS retries,
                      (%(pageds)s::boolean[])[r.kind] AS paged,
                      (%(undoes)s::integer[])[r.kind] AS undoes,
                      (%(errors)s::text[])[r.kind] AS error,
                      (%(deadlines)s::float8[])[r.kind] AS deadline_s
                 FROM unnest(
                          %(ids)s::uuid[], %(kinds)s::integer[], %(delays)s::float8[],
                          %(hashes)s::bytea[], %(parties)s::text[]
                      ) AS r (id, kind, delay_s, hash, parties)
           ) AS m
     WHERE t.id = m.id
       AND t.version = m.version
    RETURNING t.id
),
kept AS ({tried}),
answered AS ({answers})
-- Fewer or more than were locked: that divides by zero, and so nothing of this has happened.
SELECT 1 / (count(*) = %(count)s)::integer FROM moved;

-- insert: births, which are moves, too. In the order of their keys, because two batches with the
-- same keys in another order would deadlock. A key that exists fails the whole statement (23505).
WITH born AS (
    SELECT b.*,
           (%(deadlines)s::float8[])[b.kind] AS deadline_s
      FROM unnest(
               %(ids)s::uuid[], %(kinds)s::integer[], %(owners)s::bigint[], %(delays)s::float8[],
               %(parties)s::text[], %(amounts)s::numeric[], %(parents)s::uuid[],
               %(details)s::text[], %(hashes)s::bytea[], %(traces)s::text[], %(cids)s::text[],
               %(keys)s::text[], %(fingerprints)s::bytea[], %(lives)s::float8[]
           ) AS b (id, kind, owner, delay_s, parties, amount, parent, detail, hash, trace, cid, key,
                   fingerprint, lives_s)
),
moved AS MATERIALIZED (
    SELECT *,
           now() + lives_s * interval '1 second' AS expires_at,
           CASE WHEN deadline_s IS NOT NULL
                THEN now() + coalesce(lives_s, deadline_s) * interval '1 second'
           END AS deadline_at
      FROM born
),
keyed AS (
    INSERT INTO cids (owner, cid, fingerprint, transfer_id)
    SELECT owner, key, fingerprint, id
      FROM moved
     ORDER BY owner, key
),
kept AS ({tried}),
answered AS ({answers})
INSERT INTO transfers (id, owner, flow, state, lane, due_at, version, attempts, retries, paged,
                       parties, asset_id, amount, undoes, parent, detail, cid, head_hash, error,
                       trace, deadline_at, expires_at, created_at, updated_at)
SELECT id,
       owner,
       (%(flows)s::text[])[kind],
       (%(states)s::text[])[kind],
       (%(lanes)s::text[])[kind],
       least(now() + coalesce(delay_s, 0) * interval '1 second', deadline_at),
       (%(new_versions)s::integer[])[kind],
       coalesce((%(attempts)s::integer[])[kind], 0),
       coalesce((%(retries)s::integer[])[kind], 0),
       coalesce((%(pageds)s::boolean[])[kind], false),
       parties::jsonb,
       (%(assets)s::integer[])[kind],
       amount,
       (%(undoes)s::integer[])[kind],
       parent,
       detail::jsonb,
       cid,
       hash,
       (%(errors)s::text[])[kind],
       trace,
       deadline_at,
       expires_at,
       now(),
       now()
  FROM moved;

-- look: what is known under which of the keys, and the time from which ids are made. One row at
-- the least; most keys are new, and a row for each of them would say nothing. A key may lead to the
-- archive; one statement sees one moment, so that a transfer on its way there is not overlooked.
SELECT (extract(epoch FROM now()) * 1000000)::bigint,
       EXISTS (SELECT FROM halts WHERE resumed_at IS NULL),
       k.place,
       c.fingerprint,
       {transfer}
  FROM (SELECT) AS once
  LEFT JOIN (unnest(%(owners)s::bigint[], %(cids)s::text[])
                 WITH ORDINALITY AS k (owner, cid, place)
             JOIN cids AS c ON c.owner = k.owner AND c.cid = k.cid
             JOIN every_transfer AS t ON t.id = c.transfer_id)
    ON true;

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
   SET due_at = now()
  FROM (SELECT x.id
          FROM transfers AS x
          JOIN unnest(%(ids)s::uuid[], %(versions)s::integer[]) AS r (id, version)
            ON x.id = r.id AND x.version = r.version
         -- Not «IS NOT NULL», for which all that is open would be read by the index of the due.
         WHERE coalesce(x.lane, '') <> ''
         ORDER BY x.id
           FOR NO KEY UPDATE OF x) AS held
 WHERE t.id = held.id;

-- assets: few, read at start and when told.
SELECT id, code, decimals, status, internal_transfer_enabled, min_transfer_amount,
       max_transfer_amount
  FROM assets
 ORDER BY id;

-- flows: what is installed, to be compared with what this program would run.
SELECT flow, checksum FROM flow_tables;

-- forget_marks: what another process has surpassed says nothing more; the furthest stays.
DELETE FROM core_positions
 WHERE core = %(core)s
   AND position < (SELECT max(position) FROM core_positions WHERE core = %(core)s);

-- floor: the oldest transfer that has not ended. Materialised, or the whole table is walked.
WITH open AS MATERIALIZED (
    SELECT id
      FROM transfers
     WHERE lane IS NOT NULL
)
SELECT id
  FROM open
 ORDER BY id
 LIMIT 1;
