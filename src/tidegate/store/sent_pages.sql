-- mark_sent: record that these transfers were paged, in their current state. Transfers that have
-- moved in the meantime are left out.
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

-- forget_sent: delete pages of transfers that are no longer paged, or rest in another state: if
-- such a transfer pages again, that must be sent.
DELETE FROM told_pages AS p
 WHERE NOT EXISTS (SELECT
                     FROM transfers AS t
                    WHERE t.id = p.transfer_id
                      AND coalesce(t.lane, '') <> ''
                      AND t.paged
                      AND t.state = p.state);

-- unsent: open transfers that are paged and whose page was not sent, with the last reason.
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
