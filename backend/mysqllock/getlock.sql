-- What is known of user locks. The prefix stands in place of each at sign.
-- The locks themselves are the server's. A row counts only while the connection that made
-- it has its lock still. Times are microseconds of the server's clock, in UTC.

-- One row for each connection that has locks. It has the user lock of its own name.
CREATE TABLE IF NOT EXISTS @sessions (
	conn    VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
	id      BIGINT        NOT NULL, -- CONNECTION_ID()
	session VARBINARY(64) NOT NULL,
	expires BIGINT        NOT NULL, -- unless it is renewed
	made    BIGINT        NOT NULL,
	KEY (made)
) ENGINE=InnoDB;

-- The token is the number of the row: InnoDB keeps the counter, also when the rows are gone.
-- It begins with the table. To set it later could set it back, because rows do not stay.
CREATE TABLE IF NOT EXISTS @leases (
	token    BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
	name     VARBINARY(512)  NOT NULL,
	lease    VARBINARY(64)   NOT NULL,
	lockname VARCHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	conn     VARCHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	owner    VARBINARY(512)  NOT NULL,
	note     VARBINARY(4096) NOT NULL,
	since    BIGINT          NOT NULL,
	marked   BOOLEAN         NOT NULL DEFAULT FALSE, -- somebody asks for it back
	released BOOLEAN         NOT NULL DEFAULT FALSE, -- and that is no loss
	reason   VARBINARY(4096) NOT NULL DEFAULT '',
	UNIQUE KEY (name, lease),
	KEY (conn)
) ENGINE=InnoDB AUTO_INCREMENT=$START;

CREATE TABLE IF NOT EXISTS @meta (
	id      INTEGER NOT NULL PRIMARY KEY,
	version INTEGER NOT NULL
) ENGINE=InnoDB;
