-- The tables of a lock file. The version is PRAGMA user_version; see store.go.
-- Times called "boot" are nanoseconds of the host's boot clock, and are valid in one boot
-- only. Times called "wall" are nanoseconds since 1970, for people.

CREATE TABLE meta (
	id        INTEGER PRIMARY KEY CHECK (id = 1),
	file      TEXT    NOT NULL, -- the ID of the file
	boot      TEXT    NOT NULL, -- the boot that the boot times belong to
	token     INTEGER NOT NULL, -- the greatest token given, or one that is skipped
	reserved  INTEGER NOT NULL CHECK (token <= reserved),
	durable   INTEGER NOT NULL CHECK (durable <= reserved), -- a value of reserved that is known to be on disk
	place     INTEGER NOT NULL, -- the last place in a queue, or among holders
	event     INTEGER NOT NULL, -- the last event
	due       INTEGER NOT NULL, -- boot time: nothing ends before it
	watched   INTEGER NOT NULL, -- boot time: when the last watcher ends
	seen_boot INTEGER NOT NULL, -- the two clocks, read together
	seen_wall INTEGER NOT NULL
) STRICT;

CREATE TABLE sessions (
	id   TEXT    PRIMARY KEY,
	ttl  INTEGER NOT NULL,
	ends INTEGER NOT NULL, -- boot time
	addr TEXT    NOT NULL  -- notified of its losses; empty: none
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_ends ON sessions (ends);

-- Losses that renewals of a session report.
CREATE TABLE losses (
	session TEXT    NOT NULL,
	lease   TEXT    NOT NULL,
	cause   TEXT    NOT NULL,
	reason  TEXT    NOT NULL,
	until   INTEGER NOT NULL, -- boot time
	PRIMARY KEY (session, lease)
) STRICT, WITHOUT ROWID;

-- The leases that are held (held = 1), and those in the queue.
CREATE TABLE leases (
	name      TEXT    NOT NULL,
	lease     TEXT    NOT NULL,
	session   TEXT    NOT NULL, -- empty: none
	addr      TEXT    NOT NULL, -- of its waiter
	held      INTEGER NOT NULL CHECK (held IN (0, 1)),
	place     INTEGER NOT NULL,
	mode      INTEGER NOT NULL CHECK (mode IN (0, 1)),
	permits   INTEGER NOT NULL CHECK (permits > 0),
	cap       INTEGER NOT NULL CHECK (cap >= 0), -- the limit
	owner     TEXT    NOT NULL,
	note      TEXT    NOT NULL,
	timed     INTEGER NOT NULL CHECK (timed IN (0, 1)),
	ttl       INTEGER NOT NULL,
	token     INTEGER NOT NULL,
	asked     INTEGER NOT NULL, -- wall time
	since     INTEGER NOT NULL, -- wall time
	ends      INTEGER NOT NULL, -- boot time, of a timed lease that is held; else 0
	waited    INTEGER NOT NULL CHECK (waited IN (0, 1)),
	PRIMARY KEY (name, lease)
) STRICT, WITHOUT ROWID;
CREATE INDEX leases_session ON leases (session) WHERE session <> '';
CREATE INDEX leases_ends ON leases (ends) WHERE ends > 0;

-- The IDs that must not come back: of sessions that ended (name is empty) and of leases that
-- were abandoned.
CREATE TABLE tombs (
	id    TEXT    NOT NULL,
	name  TEXT    NOT NULL,
	cause TEXT    NOT NULL,
	until INTEGER NOT NULL, -- boot time
	PRIMARY KEY (id, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX tombs_until ON tombs (until);

-- The addresses that watch events, and the events while there is a watcher.
CREATE TABLE watchers (
	addr TEXT    PRIMARY KEY,
	ends INTEGER NOT NULL -- boot time
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
	n      INTEGER PRIMARY KEY,
	kind   TEXT    NOT NULL,
	name   TEXT    NOT NULL,
	lease  TEXT    NOT NULL,
	owner  TEXT    NOT NULL,
	mode   INTEGER NOT NULL,
	token  INTEGER NOT NULL,
	reason TEXT    NOT NULL,
	at     INTEGER NOT NULL, -- wall time
	until  INTEGER NOT NULL  -- boot time
) STRICT;
CREATE INDEX events_until ON events (until);
