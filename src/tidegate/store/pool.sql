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
  FULL JOIN (SELECT id, state, retries FROM transfers WHERE flow = 'pool_transfer') AS t
    ON t.id = p.transfer_id
 WHERE (economy._status(t.state), t.retries) IS DISTINCT FROM (p.status::text, p.retry_count);
