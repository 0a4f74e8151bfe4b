-- lowest: the horizon, or the oldest transfer that has not ended, or the oldest request of the
-- inbox that is not decided: it becomes a transfer under its id. One statement sees one moment, so
-- that none is overlooked on its way. Materialised, or the whole table is walked.
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

-- raise: it only rises. The row is locked by the update, so that of two floors the higher stays.
WITH raised AS (
    UPDATE id_floor
       SET floor = %(floor)s
     WHERE one
       AND floor < %(floor)s
    RETURNING floor
)
SELECT greatest((SELECT floor FROM raised), (SELECT floor FROM id_floor WHERE one));
