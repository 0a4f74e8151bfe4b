-- For the people who read: an owner's transfers by time, which is the order of their ids.
CREATE INDEX transfers_of_owner ON transfers (owner, id);
