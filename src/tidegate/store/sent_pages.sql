-- mark_told: somebody was told of these, as they stand. What has moved on meanwhile is left out.
INSERT INTO told_pages (transfer_id, state, error)
SELECT id, state, coalesce(error, '')
  FROM transfers
 WHERE id = ANY(%(ids)s::uuid[])
   AND coalesce(lane, '') <> ''
   AND paged
 ORDER BY id
ON CONFLICT (transfer_id) DO UPDATE
   SET state = excluded.state,
       error = excluded.error;

-- forget_told: what is answered, or asks something else now, is news if it pages again.
DELETE FROM told_pages AS p
 WHERE NOT EXISTS (SELECT
                     FROM transfers AS t
                    WHERE t.id = p.transfer_id
                      AND coalesce(t.lane, '') <> ''
                      AND t.paged
                      AND t.state = p.state);

-- untold: what is open and paged, and nobody was told of, with what was answered last.
SELECT t.id, t.flow, t.lane, t.state, t.retries,
       extract(epoch FROM now() - t.updated_at)::float8,
       coalesce((SELECT a.reason
                   FROM attempts AS a
                  WHERE a.transfer_id = t.id
                  ORDER BY a.retry DESC
                  LIMIT 1), t.error, '')
  FROM open_transfers AS t
 WHERE t.paged
   AND NOT EXISTS (SELECT
                     FROM told_pages AS p
                    WHERE p.transfer_id = t.id
                      AND p.state = t.state
                      AND p.error = coalesce(t.error, ''))
 ORDER BY t.updated_at, t.id
 LIMIT %(limit)s;
