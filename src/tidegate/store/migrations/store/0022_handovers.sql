-- A transfer that a process hands over in its own memory is not in the index of the due. So its
-- next move changes no indexed column, and PostgreSQL writes it beside the row without touching any
-- index (a HOT update). What is held in this way is listed in handovers, by the transaction that
-- hands it over. When its lease is over it goes into the index, like everything else that waits.
--
-- Processes of older versions must not run beside: they do not write due_lane. The constraint
-- refuses what they would write, so nothing is lost.

ALTER TABLE transfers
    ADD COLUMN due_lane text,
    ADD COLUMN held boolean NOT NULL DEFAULT false,
    -- Room for the next version of every row on its page. Most rows are written twice.
    SET (fillfactor = 45);

-- The index first: rows that are changed before it is made could not be found by it at once.
CREATE INDEX transfers_due_lane ON transfers (due_lane, flow, due_at) WHERE due_lane IS NOT NULL;
UPDATE transfers SET due_lane = lane WHERE lane IS NOT NULL;
DROP INDEX transfers_due;
ALTER INDEX transfers_due_lane RENAME TO transfers_due;

-- NOT VALID, because it holds for every row that is there: so this is instant.
ALTER TABLE transfers
    DROP CONSTRAINT transfers_values,
    ADD CONSTRAINT transfers_values CHECK (
        owner > 0 AND version >= 0 AND attempts >= 0 AND retries >= 0 AND asset_id > 0
        AND amount > '0' AND fee >= '0' AND fee < amount
        AND (due_lane IS NOT DISTINCT FROM lane OR (held AND due_lane IS NULL))
    ) NOT VALID;

-- One row per batch. The ids are not compressed: that would take longer than all else.
CREATE TABLE handovers (
    number    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    until     timestamptz NOT NULL,
    ids       uuid[]      NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE handovers ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE INDEX handovers_until ON handovers (until);
GRANT INSERT, UPDATE, DELETE ON handovers TO tidegate_engine;

-- All that has not ended: what waits in the index of the due, and what is held. OFFSET 0: each held
-- row is found by its id. A planner that expected many would read the whole table instead.
CREATE VIEW open_transfers AS
SELECT t.*
  FROM transfers AS t
 WHERE t.due_lane IS NOT NULL
 UNION ALL
SELECT t.*
  FROM (SELECT DISTINCT unnest(h.ids) AS id FROM handovers AS h) AS l
 CROSS JOIN LATERAL (
           SELECT *
             FROM transfers AS x
            WHERE x.id = l.id
              AND x.held
              AND x.lane IS NOT NULL
           OFFSET 0
       ) AS t;
