-- PostgreSQL reads every constraint of a table anew for each statement that writes to it. For a
-- small batch that costs more than to check the rows, so each table gets few constraints.

-- What each flow allows. `tidegate migrate` makes one constraint per table out of it, flow_rules,
-- for all flows together: different programs install their flows in one store. The constraints
-- flow_<name> of older versions stay until their flow is installed again.
CREATE TABLE flow_rules (
    flow    text   PRIMARY KEY,
    answers text[] NOT NULL,  -- What the history may hold.
    rests   text[] NOT NULL   -- Where a transfer may rest.
);

-- The same conditions as before. NOT VALID, because they held for every row until now: so this is
-- instant, whatever the size of the table. '0' is a constant; 0 would be converted each time.
-- The other two tables have migrations of their own: to lock two tables in one transaction can
-- deadlock with the engine.
ALTER TABLE transfers
    DROP CONSTRAINT transfers_owner_check,
    DROP CONSTRAINT transfers_version_check,
    DROP CONSTRAINT transfers_attempts_check,
    DROP CONSTRAINT transfers_retries_check,
    DROP CONSTRAINT transfers_asset_id_check,
    DROP CONSTRAINT transfers_amount_check,
    DROP CONSTRAINT transfers_fee,
    ADD CONSTRAINT transfers_values CHECK (
        owner > 0 AND version >= 0 AND attempts >= 0 AND retries >= 0 AND asset_id > 0
        AND amount > '0' AND fee >= '0' AND fee < amount
    ) NOT VALID;
