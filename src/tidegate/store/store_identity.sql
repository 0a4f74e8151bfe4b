-- renew: give a copied store its own identity. The previous one is returned too, for the record.
WITH before AS (
    SELECT store FROM store_identity WHERE one
)
UPDATE store_identity AS i
   SET store = %(store)s
  FROM before
 WHERE i.one
RETURNING before.store, i.store;
