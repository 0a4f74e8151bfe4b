-- open_members: a row per member, so that there is something to lock.
INSERT INTO economy.throttles (guild_id, member_id)
SELECT k.guild_id, k.member_id
  FROM unnest(%(guilds)s::bigint[], %(members)s::bigint[]) AS k (guild_id, member_id)
 ORDER BY k.guild_id, k.member_id
ON CONFLICT DO NOTHING;

-- lock_members: a statement of its own, in one order: what is read after it, nobody else changes.
SELECT t.member_id
  FROM economy.throttles AS t
  JOIN unnest(%(guilds)s::bigint[], %(members)s::bigint[]) AS k (guild_id, member_id)
    ON t.guild_id = k.guild_id AND t.member_id = k.member_id
 ORDER BY t.guild_id, t.member_id
   FOR NO KEY UPDATE OF t;

-- standings: what is known of each member, after their rows and accounts were locked.
SELECT s.available, s.account_status, extract(epoch FROM s.throttled_until - now())::float8, s.sent,
       s.daily_limit, s.cooldown_s, s.every_transfer, s.exempt
  FROM economy._standings(%(guilds)s::bigint[], %(members)s::bigint[]) AS s;

-- throttle: who was refused for the limit has to cool down; their rows are locked.
SELECT economy._throttle(k.guild_id, k.member_id, k.cooldown_s)
  FROM unnest(%(guilds)s::bigint[], %(members)s::bigint[], %(cooldowns)s::integer[])
    AS k (guild_id, member_id, cooldown_s);

-- pay: payments count for the day and are told, in the transaction that made them.
SELECT economy._record_payments(%(ids)s::uuid[], %(guilds)s::bigint[], %(members)s::bigint[],
                                %(targets)s::bigint[], %(amounts)s::numeric[]);

-- check: a round of checks for each transfer, in order. Those that pass are approved in the same
-- update, for the engine records them as approved in this transaction.
SELECT verdict, reason, retry_s
  FROM economy._check_batch(%(ids)s::uuid[], true);

-- begin: the pool's record of transfers that the engine has just created, if it is not there. What
-- came through the inbox is: the triggers of an insert are not fired for it. Not «NOT EXISTS», for
-- which the whole pool would be read.
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

-- record: what the engine has just recorded, in the pool's own words.
SELECT economy._record_transfers(%(ids)s::uuid[], %(states)s::text[], %(retries)s::integer[],
                                 %(rounds)s::integer[], %(reasons)s::text[]);

-- refuse: requests of the pool that did not become transfers.
SELECT economy._refuse_transfers(%(ids)s::uuid[], %(reasons)s::text[]);
