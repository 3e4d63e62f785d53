-- The tables of Holdfast. Each at sign is replaced by the prefix.
-- Names and IDs are bytes: no collation folds them. Times are microseconds of the server's
-- clock, in UTC; TTLs are microseconds.

-- One row for each lock that was used lately. A transaction that changes the leases of a
-- lock first locks its row, then reads the leases in a separate statement. A thin lock has
-- its only lease in this row.
CREATE TABLE IF NOT EXISTS @locks (
	name   VARBINARY(512) NOT NULL PRIMARY KEY,
	-- The last number given: a token, or a place in the queue. It is above all numbers of earlier
	-- rows of the lock, unless it is 0: the next number is then above the floor, too. The next one is
	-- also above the clock: so numbers grow when the table is dropped, or goes back to an old copy.
	last   BIGINT         NOT NULL,
	used   BIGINT         NOT NULL,
	-- The lock may have rows in the table of leases. 1: it has them since the transaction that
	-- wrote the 1; 2: for longer. 0: it has none, and the lease in this row, if there is one, is
	-- held. In no other case does that lease mean anything.
	fat    TINYINT        NOT NULL DEFAULT 0,
	buried BIGINT         NOT NULL DEFAULT 0, -- until then some leases of the lock have tombs
	mark   BIGINT         NOT NULL DEFAULT 0, -- of the call that granted the thin lease

	lease     VARBINARY(64)   NOT NULL DEFAULT '', -- empty: none
	session   VARBINARY(64)   NOT NULL DEFAULT '',
	mode      SMALLINT        NOT NULL DEFAULT 0,
	permits   INTEGER         NOT NULL DEFAULT 0,
	cap       INTEGER         NOT NULL DEFAULT 0,
	owner     VARBINARY(512)  NOT NULL DEFAULT '',
	note      VARBINARY(4096) NOT NULL DEFAULT '',
	timed     BOOLEAN         NOT NULL DEFAULT FALSE,
	ttl       BIGINT          NOT NULL DEFAULT 0,
	token     BIGINT          NOT NULL DEFAULT 0,
	since     BIGINT          NOT NULL DEFAULT 0,
	ends      BIGINT, -- of a timed lease
	KEY (ends)
) ENGINE=InnoDB;

-- A session lives as long as it has no cause and ends in the future.
CREATE TABLE IF NOT EXISTS @sessions (
	id    VARBINARY(64) NOT NULL PRIMARY KEY,
	ttl   BIGINT        NOT NULL,
	ends  BIGINT        NOT NULL,
	cause VARBINARY(32) NOT NULL, -- why it ended; empty: it was not ended
	KEY (ends)
) ENGINE=InnoDB;

-- The leases that are held, and those in the queue.
CREATE TABLE IF NOT EXISTS @leases (
	name      VARBINARY(512)  NOT NULL,
	lease     VARBINARY(64)   NOT NULL,
	session   VARBINARY(64)   NOT NULL, -- empty: none
	held      BOOLEAN         NOT NULL,
	place     BIGINT          NOT NULL, -- in the queue, or among the holders; a greater one is later
	mode      SMALLINT        NOT NULL,
	permits   INTEGER         NOT NULL,
	cap       INTEGER         NOT NULL, -- the limit
	owner     VARBINARY(512)  NOT NULL,
	note      VARBINARY(4096) NOT NULL,
	timed     BOOLEAN         NOT NULL,
	ttl       BIGINT          NOT NULL,
	token     BIGINT          NOT NULL,
	asked     BIGINT          NOT NULL,
	since     BIGINT          NOT NULL,
	ends      BIGINT, -- of a timed lease that is held
	waited    BOOLEAN         NOT NULL,
	PRIMARY KEY (name, lease),
	KEY (session),
	KEY (ends)
) ENGINE=InnoDB;

-- Leases that were abandoned: they must not come back.
CREATE TABLE IF NOT EXISTS @tombs (
	name    VARBINARY(512) NOT NULL,
	lease   VARBINARY(64)  NOT NULL,
	expires BIGINT         NOT NULL,
	PRIMARY KEY (name, lease),
	KEY (expires)
) ENGINE=InnoDB;

-- Losses that renewals of a session report.
CREATE TABLE IF NOT EXISTS @losses (
	session VARBINARY(64)   NOT NULL,
	lease   VARBINARY(64)   NOT NULL,
	cause   VARBINARY(32)   NOT NULL,
	reason  VARBINARY(4096) NOT NULL,
	expires BIGINT          NOT NULL,
	PRIMARY KEY (session, lease),
	KEY (expires)
) ENGINE=InnoDB;

-- This table is made last: when its row is there, everything is.
CREATE TABLE IF NOT EXISTS @meta (
	id         INTEGER NOT NULL PRIMARY KEY,
	version    INTEGER NOT NULL,
	last_floor BIGINT  NOT NULL -- not less than any number of a lock whose row was deleted
) ENGINE=InnoDB;
