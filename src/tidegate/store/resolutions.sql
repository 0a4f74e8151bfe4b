-- propose: one person's word; nothing follows from it yet.
INSERT INTO resolutions (transfer_id, version, kind, reason, evidence, proposed_by)
VALUES (%(transfer_id)s, %(version)s, %(kind)s, %(reason)s, %(evidence)s::jsonb, %(proposed_by)s)
RETURNING id;

-- find: a proposal as it stands.
SELECT id, transfer_id, version, kind, reason, evidence::text, proposed_by, confirmed_by, outcome
  FROM resolutions
 WHERE id = %(id)s;

-- confirm: by another person, once. What was confirmed and not carried out may be taken up again.
UPDATE resolutions
   SET confirmed_by = coalesce(confirmed_by, %(confirmed_by)s),
       confirmed_at = coalesce(confirmed_at, now())
 WHERE id = %(id)s
   AND outcome IS NULL
   AND proposed_by <> %(confirmed_by)s
RETURNING confirmed_by;

-- close: what came of it.
UPDATE resolutions
   SET outcome = %(outcome)s
 WHERE id = %(id)s
   AND outcome IS NULL;
