-- one: the current row of a transfer, or its archived row.
SELECT {transfer}
  FROM every_transfer AS t
 WHERE t.id = %(id)s;

-- requested: a request of the inbox. Read if there is no transfer under its id.
SELECT id, owner, flow, outcome, terms::text, asset_id, amount, cid, refusal,
       (extract(epoch FROM requested_at) * 1000000)::bigint,
       (extract(epoch FROM coalesce(decided_at, requested_at)) * 1000000)::bigint
  FROM inbox
 WHERE id = %(id)s;

-- list_of_owner: newest first, starting after a cursor, which is the last transfer of the previous
-- page.
SELECT {transfer}
  FROM every_transfer AS t
 WHERE t.owner = %(owner)s
   AND t.flow = 'internal_transfer'
   AND (%(before)s::uuid IS NULL
        OR (t.created_at, t.id) < (SELECT c.created_at, c.id
                                     FROM every_transfer AS c
                                    WHERE c.id = %(before)s::uuid))
   AND (%(state)s::text IS NULL OR t.state = %(state)s)
 ORDER BY t.created_at DESC, t.id DESC
 LIMIT %(limit)s;

-- search: transfers of all flows, for an operator. With an owner it uses the owner's index, else
-- the ids.
SELECT {transfer}
  FROM every_transfer AS t
 WHERE t.id < %(before)s::uuid
   AND (%(owner)s::bigint IS NULL OR t.owner = %(owner)s)
   AND (%(flow)s::text IS NULL OR t.flow = %(flow)s)
   AND (%(state)s::text IS NULL OR t.state = %(state)s)
 ORDER BY t.id DESC
 LIMIT %(limit)s;

-- stuck: open transfers that have been in the same state for a while, except in states that wait by
-- design. Few rows, found by their own index.
SELECT {transfer}
  FROM open_transfers AS t
 WHERE t.updated_at < now() - %(stuck_s)s * interval '1 second'
   AND (t.flow, t.state) NOT IN (SELECT q.flow, q.state
                                   FROM unnest(%(waits_flows)s::text[], %(waits_states)s::text[])
                                     AS q (flow, state))
   AND t.id < %(before)s::uuid
 ORDER BY t.id DESC
 LIMIT %(limit)s;

-- history: the answers of one transfer, oldest first.
SELECT version, from_state, waypoints, to_state, verb, answer, reason, evidence::text, actor,
       (extract(epoch FROM at) * 1000000)::bigint, hash
  FROM every_history
 WHERE transfer_id = %(id)s
 ORDER BY version;

-- attempts: why questions stayed open, oldest first.
SELECT version, retry, reason, (extract(epoch FROM at) * 1000000)::bigint
  FROM attempts
 WHERE transfer_id = %(id)s
 ORDER BY retry;

-- set_asset: change the settings that are given. A setting that is NULL stays as it is.
UPDATE assets
   SET status = coalesce(%(status)s, status),
       internal_transfer_enabled = coalesce(%(enabled)s, internal_transfer_enabled),
       min_transfer_amount = coalesce(%(minimum)s::numeric, min_transfer_amount),
       max_transfer_amount = CASE WHEN %(unbounded)s THEN NULL
                                  ELSE coalesce(%(maximum)s::numeric, max_transfer_amount) END
 WHERE code = %(code)s
RETURNING code;

-- backlog: how many open transfers each lane and state has, and the age of the oldest.
SELECT lane, flow, state, count(*), extract(epoch FROM now() - min(updated_at))::float8
  FROM open_transfers
 GROUP BY lane, flow, state;

-- about_how_many: the planner's estimate of the number of transfers. The estimate of a table is -1
-- before its first ANALYZE.
SELECT sum(greatest(reltuples, 0))::bigint
  FROM pg_class
 WHERE oid IN ('transfers'::regclass, 'archived_transfers'::regclass);
