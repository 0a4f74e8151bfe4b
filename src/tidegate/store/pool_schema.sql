-- there: whether this database has the guild economy.
SELECT to_regclass('economy.home') IS NOT NULL;

-- home: the store in which the guilds live.
SELECT store FROM economy.home;

-- waiting: what is due in the pool and was not looked at for a minute, by lane and due time.
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

-- differing: transfers of which the pool and the engine say different things. There are none. What
-- the inbox still has is pending in the pool, and what it refused is rejected there.
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
   -- A refused request is forgotten in due time; the pool's own record stays.
   AND NOT (t.id IS NULL AND p.status = 'rejected' AND p.retry_count = 0);

-- new_id: fixed before the first try, so that the same request can be tried again.
SELECT new_id();

-- create: once per id and per cid; a replay is found before it is asked whether anything new is
-- admitted.
SELECT transfer_id, duplicate
  FROM economy._create_pending_transfer(
           economy._pending_transfer(
               %(transfer_id)s, %(guild_id)s, %(initiator_id)s, %(target_id)s, %(amount)s,
               %(metadata)s::jsonb, now() + %(expires_hours)s * interval '1 hour', %(cid)s),
           %(admitted)s);

-- own: a member's transfers, the newest first; what is NULL is not asked about.
SELECT transfer_id, guild_id, initiator_id, target_id, amount, status, checks, retry_count, round,
       metadata, expires_at, created_at, updated_at, cid
  FROM economy.pending_transfers
 WHERE initiator_id = %(owner)s
   AND (%(guild_id)s::bigint IS NULL OR guild_id = %(guild_id)s)
   AND (%(status)s::text IS NULL OR status = %(status)s)
 ORDER BY created_at DESC, transfer_id DESC
 LIMIT %(limit)s
OFFSET %(offset)s;

-- show: one transfer, to either of the two whom it is between.
SELECT transfer_id, guild_id, initiator_id, target_id, amount, status, checks, retry_count, round,
       metadata, expires_at, created_at, updated_at, cid
  FROM economy.pending_transfers
 WHERE transfer_id = %(transfer_id)s
   AND %(owner)s IN (initiator_id, target_id);
