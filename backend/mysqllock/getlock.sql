-- The records of user locks. Each at sign is replaced by the prefix.
-- The server itself holds the locks. A row counts only while the connection that made it
-- still has its lock. Times are microseconds of the server's clock, in UTC.

-- One row for each connection that has locks. The connection holds the user lock of its own
-- name.
CREATE TABLE IF NOT EXISTS @sessions (
	conn    VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
	id      BIGINT        NOT NULL, -- CONNECTION_ID()
	session VARBINARY(64) NOT NULL,
	expires BIGINT        NOT NULL, -- unless it is renewed
	made    BIGINT        NOT NULL,
	KEY (made)
) ENGINE=InnoDB;

-- The token is the number of the row: InnoDB keeps the counter, also when the rows are gone. A
-- row with a greater number raises it. Only the loss of the table, or an old copy that is
-- restored, sets it back: so each connection that is made raises it to the microseconds of the
-- server's clock. There are less than a million grants a second, so tokens grow all the same.
CREATE TABLE IF NOT EXISTS @leases (
	token    BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
	name     VARBINARY(512)  NOT NULL,
	lease    VARBINARY(64)   NOT NULL,
	lockname VARCHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	conn     VARCHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	owner    VARBINARY(512)  NOT NULL,
	note     VARBINARY(4096) NOT NULL,
	since    BIGINT          NOT NULL,
	marked   BOOLEAN         NOT NULL DEFAULT FALSE, -- it was broken: its connection has to release it
	reason   VARBINARY(4096) NOT NULL DEFAULT '',
	UNIQUE KEY (name, lease),
	KEY (conn)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS @meta (
	id      INTEGER NOT NULL PRIMARY KEY,
	version INTEGER NOT NULL
) ENGINE=InnoDB;
