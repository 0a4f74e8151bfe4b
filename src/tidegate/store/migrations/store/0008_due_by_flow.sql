-- A process claims only flows that it knows. With the flow before the time, rows of other flows are
-- never read on the way, however many of them are due.
CREATE INDEX transfers_due_by_flow ON transfers (lane, flow, due_at) WHERE lane IS NOT NULL;
DROP INDEX transfers_due;
ALTER INDEX transfers_due_by_flow RENAME TO transfers_due;
