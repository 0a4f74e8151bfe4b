-- One constraint for one reading, as for transfers: the same conditions, which held for every row.
ALTER TABLE ledger_accounts
    DROP CONSTRAINT ledger_accounts_check,
    DROP CONSTRAINT ledger_accounts_held_check,
    DROP CONSTRAINT ledger_accounts_status_check,
    ADD CONSTRAINT ledger_accounts_values CHECK (
        (available >= '0' OR book = 'OUTSIDE') AND held >= '0'
        AND status IN ('ACTIVE', 'FROZEN', 'DISABLED')
    ) NOT VALID;
