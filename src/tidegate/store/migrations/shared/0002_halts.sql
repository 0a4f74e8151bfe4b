-- One row per halt: a second one during a first keeps its own reason and author, and everything
-- stays halted until each of them has been ended. The index finds those in force.
DROP INDEX halts_in_force;
CREATE INDEX halts_in_force ON halts (id) WHERE resumed_at IS NULL;
