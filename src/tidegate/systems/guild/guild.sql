-- open_members: one row per member, so that the next statement can lock it.
INSERT INTO economy.throttles (guild_id, member_id)
SELECT k.guild_id, k.member_id
  FROM unnest(%(guilds)s::bigint[], %(members)s::bigint[]) AS k (guild_id, member_id)
 ORDER BY k.guild_id, k.member_id
ON CONFLICT DO NOTHING;

-- lock_members: a separate statement, in one order. No other session changes the members' values
-- that later statements read.
SELECT t.member_id
  FROM economy.throttles AS t
  JOIN unnest(%(guilds)s::bigint[], %(members)s::bigint[]) AS k (guild_id, member_id)
    ON t.guild_id = k.guild_id AND t.member_id = k.member_id
 ORDER BY t.guild_id, t.member_id
   FOR NO KEY UPDATE OF t;

-- standings: the facts about each member, read after their rows and accounts were locked.
SELECT s.available, s.account_status, extract(epoch FROM s.throttled_until - now())::float8, s.sent,
       s.daily_limit, s.cooldown_s, s.every_transfer, s.exempt
  FROM economy._standings(%(guilds)s::bigint[], %(members)s::bigint[]) AS s;

-- throttle: start the cooldown of members that exceeded their limit. Their rows are locked.
SELECT economy._throttle(k.guild_id, k.member_id, k.cooldown_s)
  FROM unnest(%(guilds)s::bigint[], %(members)s::bigint[], %(cooldowns)s::integer[])
    AS k (guild_id, member_id, cooldown_s);

-- pay: add payments to the day's total and notify listeners, in the transaction of the payments.
SELECT economy._record_payments(%(ids)s::uuid[], %(guilds)s::bigint[], %(members)s::bigint[],
                                %(targets)s::bigint[], %(amounts)s::numeric[]);

-- check: one round of checks for each transfer, in order. The same update approves those that pass,
-- because the engine records them as approved in this transaction.
SELECT verdict, reason, retry_s
  FROM economy._check_batch(%(ids)s::uuid[], true);

-- begin: insert the pool's record of transfers that the engine has just created. A request from the
-- inbox has its record already: it is left out, so that its insert triggers do not run again. Not
-- written as NOT EXISTS, because that plan reads the whole pool.
INSERT INTO economy.pending_transfers (transfer_id, guild_id, initiator_id, target_id, amount,
                                       expires_at)
SELECT t.id, t.owner, k.member_id, k.target_id, t.amount, t.expires_at
  FROM unnest(%(ids)s::uuid[], %(members)s::bigint[], %(targets)s::bigint[])
    AS k (id, member_id, target_id)
  JOIN transfers AS t ON t.id = k.id
 WHERE (SELECT p.transfer_id
          FROM economy.pending_transfers AS p
         WHERE p.transfer_id = k.id) IS NULL
ON CONFLICT (transfer_id) DO NOTHING;

-- record: copy the moves that the engine has just recorded into the pool's own records.
SELECT economy._record_transfers(%(ids)s::uuid[], %(states)s::text[], %(retries)s::integer[],
                                 %(rounds)s::integer[], %(reasons)s::text[]);

-- refuse: requests of the pool that did not become transfers.
SELECT economy._refuse_transfers(%(ids)s::uuid[], %(reasons)s::text[]);
