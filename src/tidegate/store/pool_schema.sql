-- economy_exists: whether this database has the guild economy.
SELECT to_regclass('economy.home') IS NOT NULL;

-- home: the store that contains the guilds.
SELECT store FROM economy.home;

-- waiting: how many transfers of the pool have been due for a minute, and for how long the oldest.
-- Found by lane and due time.
SELECT count(*), coalesce(extract(epoch FROM now() - min(due_at)), 0)::bigint
  FROM (SELECT due_at
          FROM transfers
         WHERE due_lane IN ('checks', 'allowance')
           AND due_at < now() - interval '1 minute'
         UNION ALL
        SELECT due_at
          FROM inbox
         WHERE outcome IS NULL
           AND due_at < now() - interval '1 minute'
           AND flow = 'pool_transfer') AS late;

-- differing: how many transfers have a different status in the pool and in the engine; it should
-- be 0. A request that waits in the inbox is pending in the pool; a refused one is rejected there.
SELECT count(*)
  FROM economy.pending_transfers AS p
  FULL JOIN (SELECT id, economy._status(state) AS status, retries
               FROM every_transfer
              WHERE flow = 'pool_transfer'
              UNION ALL
             SELECT id, CASE outcome WHEN 'refused' THEN 'rejected' ELSE 'pending' END, 0
               FROM inbox
              WHERE flow = 'pool_transfer'
                AND outcome IS DISTINCT FROM 'created') AS t
    ON t.id = p.transfer_id
 WHERE (t.status, t.retries) IS DISTINCT FROM (p.status::text, p.retry_count)
   -- The inbox deletes a refused request after some time; the pool keeps its own record.
   AND NOT (t.id IS NULL AND p.status = 'rejected' AND p.retry_count = 0);

-- new_id: an id for a new request. The caller takes it before the first try, so that a retry sends
-- the same id.
SELECT new_id();

-- create: once per id and per cid. A replay is found before the check whether new transfers are
-- admitted.
SELECT transfer_id, duplicate
  FROM economy._create_pending_transfer(
           economy._pending_transfer(
               %(transfer_id)s, %(guild_id)s, %(initiator_id)s, %(target_id)s, %(amount)s,
               %(metadata)s::jsonb, now() + %(expires_hours)s * interval '1 hour', %(cid)s),
           %(admitted)s);

-- own: the transfers of a member, newest first. A filter that is NULL is not applied.
SELECT transfer_id, guild_id, initiator_id, target_id, amount, status, checks, retry_count, round,
       metadata, expires_at, created_at, updated_at, cid
  FROM economy.pending_transfers
 WHERE initiator_id = %(owner)s
   AND (%(guild_id)s::bigint IS NULL OR guild_id = %(guild_id)s)
   AND (%(status)s::text IS NULL OR status = %(status)s)
 ORDER BY created_at DESC, transfer_id DESC
 LIMIT %(limit)s
OFFSET %(offset)s;

-- show: one transfer, only for its initiator or its target.
SELECT transfer_id, guild_id, initiator_id, target_id, amount, status, checks, retry_count, round,
       metadata, expires_at, created_at, updated_at, cid
  FROM economy.pending_transfers
 WHERE transfer_id = %(transfer_id)s
   AND %(owner)s IN (initiator_id, target_id);
