-- When a transfer ends if nobody has decided by then: takes the place of its states' deadlines.
ALTER TABLE transfers ADD COLUMN expires_at timestamptz;
ALTER TABLE archived_transfers ADD COLUMN expires_at timestamptz;

CREATE OR REPLACE VIEW every_transfer AS
SELECT id, owner, flow, state, lane, due_at, version, attempts, retries, paged, parties, asset_id,
       amount, undoes, parent, detail, cid, head_hash, error, trace, deadline_at, created_at,
       updated_at, NULL::timestamptz AS cid_forgotten_at, expires_at
  FROM transfers
 UNION ALL
SELECT id, owner, flow, state, lane, due_at, version, attempts, retries, paged, parties, asset_id,
       amount, undoes, parent, detail, cid, head_hash, error, trace, deadline_at, created_at,
       updated_at, cid_forgotten_at, expires_at
  FROM archived_transfers;
