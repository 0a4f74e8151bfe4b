-- home: the store in which the guilds live.
SELECT store FROM economy.home;

-- create: once per cid; the same wish again gets the transfer that it became.
SELECT economy.fn_create_pending_transfer(
           %(guild_id)s, %(initiator_id)s, %(target_id)s, %(amount)s, %(metadata)s::jsonb,
           now() + %(expires_hours)s * interval '1 hour', %(cid)s);

-- create_many: the id of each, in order; NULL for one that has to be created by itself.
SELECT economy.fn_create_pending_transfers(
           %(guild_id)s::bigint[], %(initiator_id)s::bigint[], %(target_id)s::bigint[],
           %(amount)s::bigint[], %(metadata)s::jsonb[],
           ARRAY(SELECT now() + h.hours * interval '1 hour'
                   FROM unnest(%(expires_hours)s::float8[]) WITH ORDINALITY AS h (hours, place)
                  ORDER BY h.place),
           %(cid)s::text[]);

-- get: one transfer of the pool.
SELECT * FROM economy.fn_get_pending_transfer(%(transfer_id)s);

-- list: a guild's transfers, the newest first.
SELECT *
  FROM economy.fn_list_pending_transfers(%(guild_id)s, %(status)s, %(limit)s, %(offset)s);

-- update: words about a transfer; its state is the engine's to say.
SELECT economy.fn_update_pending_transfer(%(transfer_id)s, %(metadata)s::jsonb);

-- balances_after: what both had when a payment was made.
SELECT o.verb, o.balance_after
  FROM ledger_operations AS o
 WHERE o.transfer_id = %(transfer_id)s
   AND o.result = 'done'
 ORDER BY o.version;
