-- move: move transfers that ended long ago, oldest first, with their history. It is one statement,
-- so that no reader sees a transfer twice or not at all. An id starts with its creation time, which
-- is before the end, so ids bound the search. Locked rows are left for the next run. Each table is
-- matched with an array of ids, so that the planner uses its key whatever the statistics are.
WITH old AS MATERIALIZED (
    SELECT id
      FROM transfers
     WHERE id > %(after)s
       AND id < (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - %(older_ms)s), 12, '0')
                 || repeat('0', 20))::uuid
       AND lane IS NULL
       AND updated_at < now() - %(older_ms)s * interval '1 millisecond'
     ORDER BY id
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
),
ended AS (
    DELETE FROM transfers AS t
     WHERE t.id = ANY(ARRAY(SELECT id FROM old))
    RETURNING t.*
),
answered AS (
    DELETE FROM history AS h
     WHERE h.transfer_id = ANY(ARRAY(SELECT id FROM old))
    RETURNING h.*
),
removed_attempts AS (
    DELETE FROM attempts AS a
     WHERE a.transfer_id = ANY(ARRAY(SELECT id FROM old))
    RETURNING a.slot
),
archived AS (
    INSERT INTO archived_transfers (
           id, owner, flow, state, lane, due_at, version, attempts, retries, paged, parties,
           asset_id, amount, undoes, parent, detail, cid, space, head_hash, error, trace,
           deadline_at, expires_at, created_at, updated_at, fee)
    SELECT id, owner, flow, state, lane, due_at, version, attempts, retries, paged, parties,
           asset_id, amount, undoes, parent, detail, cid, space, head_hash, error, trace,
           deadline_at, expires_at, created_at, updated_at, fee
      FROM ended
    RETURNING id, version
),
archived_answers AS (
    INSERT INTO archived_history (
           transfer_id, version, flow, from_state, waypoints, to_state, verb, answer, reason,
           evidence, actor, at, hash)
    SELECT transfer_id, version, flow, from_state, waypoints, to_state, verb, answer, reason,
           evidence, actor, at, hash
      FROM answered
    RETURNING transfer_id
)
SELECT (SELECT id FROM old ORDER BY id DESC LIMIT 1),
       (SELECT count(*) FROM old),
       (SELECT count(*) FROM archived),
       (SELECT count(*) FROM archived_answers),
       (SELECT count(*) FROM removed_attempts),
       -- The version counts answers: a transfer with more or fewer history rows is not archived.
       (SELECT k.id
          FROM archived AS k
          LEFT JOIN (SELECT transfer_id, count(*) AS answers
                       FROM archived_answers
                      GROUP BY transfer_id) AS h ON h.transfer_id = k.id
         WHERE k.version <> coalesce(h.answers, 0)
         ORDER BY k.id
         LIMIT 1);

-- forget: delete the keys of archived transfers that ended so long ago that no client repeats them.
-- The transfer is marked with the time, so that the audit still reports a key that is missing for
-- another reason.
WITH old AS MATERIALIZED (
    SELECT id, owner, coalesce(key_of(space, cid), id::text) AS cid
      FROM archived_transfers
     WHERE cid_forgotten_at IS NULL
       AND id > %(after)s
       AND id < (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - %(older_ms)s), 12, '0')
                 || repeat('0', 20))::uuid
       AND updated_at < now() - %(older_ms)s * interval '1 millisecond'
     ORDER BY id
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
),
forgotten AS (
    DELETE FROM cids AS c
     USING old
     WHERE c.owner = old.owner
       AND c.cid = old.cid
       AND c.transfer_id = old.id
    RETURNING c.transfer_id
),
marked AS (
    UPDATE archived_transfers AS t
       SET cid_forgotten_at = now()
      FROM old
     WHERE t.id = old.id
    RETURNING t.id
)
SELECT (SELECT id FROM old ORDER BY id DESC LIMIT 1),
       (SELECT count(*) FROM old),
       (SELECT count(*) FROM marked),
       (SELECT count(*) FROM forgotten),
       (SELECT m.id
          FROM marked AS m
         WHERE NOT EXISTS (SELECT FROM forgotten AS f WHERE f.transfer_id = m.id)
         ORDER BY m.id
         LIMIT 1);
