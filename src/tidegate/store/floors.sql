-- lowest: the time of the database, and the lowest id of open transfers and undecided inbox
-- requests; a request becomes a transfer under the same id. One statement reads one snapshot, so
-- that a request that is just becoming a transfer is not missed. Materialised, because otherwise
-- the whole table is scanned.
WITH open AS MATERIALIZED (
    SELECT id
      FROM open_transfers
     UNION ALL
    SELECT id
      FROM inbox
     WHERE outcome IS NULL
)
SELECT (extract(epoch FROM now()) * 1000000)::bigint,
       (SELECT id FROM open ORDER BY id LIMIT 1);

-- raise: the floor only rises. The update locks the row, so that the higher of two floors stays.
WITH raised AS (
    UPDATE id_floor
       SET floor = %(floor)s
     WHERE one
       AND floor < %(floor)s
    RETURNING floor
)
SELECT greatest((SELECT floor FROM raised), (SELECT floor FROM id_floor WHERE one));
