-- For the people who read: an owner's transfers by time. Not by id, although ids order by time: a
-- plan made on an empty table could then walk this index to find transfers by their ids.
CREATE INDEX transfers_of_owner ON transfers (owner, created_at);
