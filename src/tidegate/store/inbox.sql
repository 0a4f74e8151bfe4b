-- claim: lease due requests, earliest due first, of the flows whose installed table is ours.
WITH due AS MATERIALIZED (
    SELECT id
      FROM inbox
     WHERE outcome IS NULL
       AND due_at <= now()
       AND flow = ANY(ARRAY(
               SELECT k.flow
                 FROM unnest(%(flows)s::text[], %(checksums)s::text[]) AS k (flow, checksum)
                WHERE k.checksum = (SELECT f.checksum FROM flow_tables AS f WHERE f.flow = k.flow)))
       AND NOT EXISTS (SELECT FROM halts WHERE resumed_at IS NULL)
     ORDER BY due_at
     LIMIT %(limit)s
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE inbox AS i
   SET due_at = now() + %(lease_s)s * interval '1 second',
       attempts = i.attempts + 1
  FROM due
 WHERE i.id = due.id
RETURNING i.id, i.owner, i.flow, i.asset_id, i.amount, i.terms::text, i.space, i.cid,
          (extract(epoch FROM i.expires_at) * 1000000)::bigint,
          coalesce(i.expires_at <= now(), false), i.attempts;

-- take: lock requests in id order, so that batches cannot deadlock. Requests that another process
-- has decided in the meantime are left out.
SELECT id
  FROM inbox
 WHERE id = ANY(%(ids)s::uuid[])
   AND outcome IS NULL
 ORDER BY id
   FOR NO KEY UPDATE;

-- decide: store the outcome of locked requests.
UPDATE inbox AS i
   SET outcome = CASE WHEN d.refusal IS NULL THEN 'created' ELSE 'refused' END,
       refusal = d.refusal,
       decided_at = now(),
       error = NULL
  FROM unnest(%(ids)s::uuid[], %(refusals)s::text[]) AS d (id, refusal)
 WHERE i.id = d.id;

-- postpone: leave requests undecided and make them due later.
UPDATE inbox AS i
   SET due_at = now() + %(delay_s)s * interval '1 second',
       error = %(reason)s
 WHERE i.id = ANY(%(ids)s::uuid[])
   AND i.outcome IS NULL;

-- forget: delete some requests that were decided long ago.
SELECT forget_requests(%(older_s)s, %(limit)s);
