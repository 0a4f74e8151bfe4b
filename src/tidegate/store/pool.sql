-- there: whether this database has the guild economy.
SELECT to_regclass('economy.home') IS NOT NULL;

-- home: the store in which the guilds live.
SELECT store FROM economy.home;

-- waiting: what is due in the pool and was not looked at for a minute, by lane and due time.
SELECT count(*), coalesce(extract(epoch FROM now() - min(due_at)), 0)::bigint
  FROM transfers
 WHERE lane IN ('checks', 'allowance')
   AND due_at < now() - interval '1 minute';

-- differing: transfers of which the pool and the engine say different things. There are none.
SELECT count(*)
  FROM economy.pending_transfers AS p
  FULL JOIN (SELECT id, state, retries FROM every_transfer WHERE flow = 'pool_transfer') AS t
    ON t.id = p.transfer_id
 WHERE (economy._status(t.state), t.retries) IS DISTINCT FROM (p.status::text, p.retry_count);

-- create: once per cid; a replay is found before it is asked whether anything new is admitted.
SELECT transfer_id, duplicate
  FROM economy._create_pending_transfer(
           %(guild_id)s, %(initiator_id)s, %(target_id)s, %(amount)s, %(metadata)s::jsonb,
           now() + %(expires_hours)s * interval '1 hour', %(cid)s, %(admitted)s);

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
