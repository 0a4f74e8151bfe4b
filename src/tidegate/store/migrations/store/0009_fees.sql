-- A transfer may carry a fee, and a credit with a fee has two entries under its one key.

-- Instant, whatever the size of the tables: the default is kept in the catalogue. NOT VALID,
-- because every row that exists has no fee, and a positive amount.
ALTER TABLE transfers ADD COLUMN fee numeric(39,0) NOT NULL DEFAULT 0;
ALTER TABLE transfers ADD CONSTRAINT transfers_fee CHECK (fee >= 0 AND fee < amount) NOT VALID;
ALTER TABLE archived_transfers ADD COLUMN fee numeric(39,0) NOT NULL DEFAULT 0;

CREATE OR REPLACE VIEW every_transfer AS
SELECT id, owner, flow, state, lane, due_at, version, attempts, retries, paged, parties, asset_id,
       amount, undoes, parent, detail, cid, head_hash, error, trace, deadline_at, created_at,
       updated_at, NULL::timestamptz AS cid_forgotten_at, expires_at, fee
  FROM transfers
 UNION ALL
SELECT id, owner, flow, state, lane, due_at, version, attempts, retries, paged, parties, asset_id,
       amount, undoes, parent, detail, cid, head_hash, error, trace, deadline_at, created_at,
       updated_at, cid_forgotten_at, expires_at, fee
  FROM archived_transfers;

-- Entry 0 is the account of the party asked, entry 1 the account that gets the fee. The key's index
-- is made anew: the ledger waits for that, about two seconds per million operations.
ALTER TABLE ledger_operations ADD COLUMN entry smallint NOT NULL DEFAULT 0;
ALTER TABLE ledger_operations DROP CONSTRAINT ledger_operations_pkey,
                              ADD PRIMARY KEY (transfer_id, version, entry);
ALTER TABLE ledger_operations ADD CONSTRAINT ledger_operations_entry
    CHECK (entry = 0 OR (entry = 1 AND verb = 'credit')) NOT VALID;
