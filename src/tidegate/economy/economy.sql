-- home: the store that contains the guild economy.
SELECT store FROM economy.home;

-- create: create a transfer once per cid; a repeated request returns the existing transfer.
SELECT economy.fn_create_pending_transfer(
           %(guild_id)s, %(initiator_id)s, %(target_id)s, %(amount)s, %(metadata)s::jsonb,
           now() + %(expires_hours)s * interval '1 hour', %(cid)s);

-- create_many: the ids of the new transfers, in order; NULL for one to be created by itself.
SELECT economy.fn_create_pending_transfers(
           %(guild_id)s::bigint[], %(initiator_id)s::bigint[], %(target_id)s::bigint[],
           %(amount)s::bigint[], %(metadata)s::jsonb[],
           ARRAY(SELECT now() + h.hours * interval '1 hour'
                   FROM unnest(%(expires_hours)s::float8[]) WITH ORDINALITY AS h (hours, ordinal)
                  ORDER BY h.ordinal),
           %(cid)s::text[]);

-- get: one transfer of the pool.
SELECT * FROM economy.fn_get_pending_transfer(%(transfer_id)s);

-- list: the transfers of a guild, newest first.
SELECT *
  FROM economy.fn_list_pending_transfers(%(guild_id)s, %(status)s, %(limit)s, %(offset)s);

-- update: add metadata to a transfer; only the engine changes its state.
SELECT economy.fn_update_pending_transfer(%(transfer_id)s, %(metadata)s::jsonb);

-- balances_after: the balances of both members right after a payment.
SELECT o.verb, o.balance_after
  FROM ledger_operations AS o
 WHERE o.transfer_id = %(transfer_id)s
   AND o.result = 'done'
 ORDER BY o.version;
