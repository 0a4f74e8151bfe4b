-- remember: store the newest mark of this process. The statement compares with the stored position,
-- not with what this process stored last: that transaction may have been rolled back.
INSERT INTO core_positions AS known (core, process, uuid, position, crc, epoch)
VALUES (%(core)s, %(process)s, %(uuid)s, %(position)s, %(crc)s, %(epoch)s)
ON CONFLICT (core, process) DO UPDATE
SET position = excluded.position, crc = excluded.crc, epoch = excluded.epoch
WHERE known.uuid = excluded.uuid
  AND (known.position, known.epoch) < (excluded.position, excluded.epoch);

-- marks: the newest mark that each process of this store has acknowledged from a core.
SELECT uuid, position, crc, epoch
FROM core_positions
WHERE core = %(core)s;

-- introduction: the identity of this store, its database and cluster, and the assets that exist. A
-- restored or copied store has the same identity in another database.
SELECT i.store,
       c.system_identifier || '/' || d.oid,
       ARRAY(SELECT id FROM assets)
  FROM store_identity AS i, pg_control_system() AS c, pg_database AS d
 WHERE i.one
   AND d.datname = current_database();
