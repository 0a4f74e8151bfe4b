-- One constraint for one reading, as for transfers: the same conditions, which held for every row.
ALTER TABLE ledger_operations
    DROP CONSTRAINT ledger_operations_result_check,
    DROP CONSTRAINT ledger_operations_check,
    DROP CONSTRAINT ledger_operations_check1,
    DROP CONSTRAINT ledger_operations_entry,
    ADD CONSTRAINT ledger_operations_values CHECK (
        result IN ('done', 'rejected')
        AND (result = 'done' OR (delta = '0' AND held_delta = '0'))
        AND (result = 'rejected') = (reason <> '')
        AND (entry = 0 OR (entry = 1 AND verb = 'credit'))
    ) NOT VALID;
