-- propose: store one person's proposal. It has no effect until another person confirms it.
INSERT INTO resolutions (transfer_id, version, kind, reason, evidence, proposed_by)
VALUES (%(transfer_id)s, %(version)s, %(kind)s, %(reason)s, %(evidence)s::jsonb, %(proposed_by)s)
RETURNING id;

-- find: the current row of a proposal.
SELECT id, transfer_id, version, kind, reason, evidence::text, proposed_by, confirmed_by, outcome
  FROM resolutions
 WHERE id = %(id)s;

-- confirm: by another person than the proposer. A proposal that was confirmed but not carried out
-- may be confirmed again; the first confirmation stays.
UPDATE resolutions
   SET confirmed_by = coalesce(confirmed_by, %(confirmed_by)s),
       confirmed_at = coalesce(confirmed_at, now())
 WHERE id = %(id)s
   AND outcome IS NULL
   AND proposed_by <> %(confirmed_by)s
RETURNING confirmed_by;

-- close: store the outcome of a proposal, once.
UPDATE resolutions
   SET outcome = %(outcome)s
 WHERE id = %(id)s
   AND outcome IS NULL;
