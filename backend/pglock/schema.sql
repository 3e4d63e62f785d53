-- The tables of Holdfast. Each at sign is replaced by the schema.
-- Times are those of the server (clock_timestamp). TTLs are microseconds.

CREATE TABLE @meta (
	id      integer     PRIMARY KEY CHECK (id = 1),
	version integer     NOT NULL,
	floor   bigint      NOT NULL, -- not less than any number of a lock whose row was deleted
	watched timestamptz NOT NULL  -- events are sent until then
);

-- One row for each lock that was used lately. A transaction that changes the leases of a
-- lock first locks its row, then reads the leases in a separate statement. A thin lock has
-- its only lease in this row.
CREATE TABLE @locks (
	name text        COLLATE "C" PRIMARY KEY,
	-- The last number given: a token, or a place in the queue. The next one is above the
	-- microseconds of the server's clock, too: so numbers grow also when the table is dropped, or
	-- goes back to an old copy.
	last bigint      NOT NULL,
	used timestamptz NOT NULL,
	-- The lock may have rows in the table of leases. 1: it has them since the transaction that
	-- wrote the 1; 2: for longer. 0: it has none, and the lease in this row, if there is one, is
	-- held. In no other case does that lease mean anything.
	fat    smallint    NOT NULL DEFAULT 0,
	-- Until then some leases of the lock have tombs. It changes with each of them.
	buried timestamptz NOT NULL DEFAULT '-infinity',

	lease     text        COLLATE "C" NOT NULL DEFAULT '', -- empty: none
	session   text        COLLATE "C" NOT NULL DEFAULT '',
	mode      smallint    NOT NULL DEFAULT 0,
	permits   integer     NOT NULL DEFAULT 0,
	cap       integer     NOT NULL DEFAULT 0,
	owner     text        NOT NULL DEFAULT '',
	note      text        NOT NULL DEFAULT '',
	timed     boolean     NOT NULL DEFAULT false,
	ttl       bigint      NOT NULL DEFAULT 0,
	token     bigint      NOT NULL DEFAULT 0,
	since     timestamptz NOT NULL DEFAULT '-infinity',
	ends      timestamptz
) WITH (fillfactor = 50);
-- Of timed leases only: the row of any other is written without an index entry.
CREATE INDEX locks_ends ON @locks (ends) WHERE ends IS NOT NULL;

-- A session lives as long as it has no cause and ends in the future.
CREATE TABLE @sessions (
	id    text        COLLATE "C" PRIMARY KEY,
	ttl   bigint      NOT NULL,
	ends  timestamptz NOT NULL,
	cause text        NOT NULL, -- why it ended; empty: it was not ended
	addr  text        NOT NULL  -- the channel for notifications of its losses; empty: none
) WITH (fillfactor = 50);
CREATE INDEX sessions_ends ON @sessions (ends);

-- The leases that are held, and those in the queue.
CREATE TABLE @leases (
	name      text        COLLATE "C" NOT NULL,
	lease     text        COLLATE "C" NOT NULL,
	session   text        COLLATE "C" NOT NULL, -- empty: none
	addr      text        NOT NULL, -- the channels of its waiters, with blanks between them
	held      boolean     NOT NULL,
	place     bigint      NOT NULL, -- in the queue, or among the holders; a greater one is later
	mode      smallint    NOT NULL,
	permits   integer     NOT NULL,
	cap       integer     NOT NULL, -- the limit
	owner     text        NOT NULL,
	note      text        NOT NULL,
	timed     boolean     NOT NULL,
	ttl       bigint      NOT NULL,
	token     bigint      NOT NULL,
	asked     timestamptz NOT NULL,
	since     timestamptz NOT NULL,
	ends      timestamptz, -- of a timed lease that is held
	waited    boolean     NOT NULL,
	PRIMARY KEY (name, lease)
);
CREATE INDEX leases_session ON @leases (session) WHERE session <> '';
CREATE INDEX leases_ends ON @leases (ends) WHERE ends IS NOT NULL;

-- Leases that were abandoned: they must not come back.
CREATE TABLE @tombs (
	name  text        COLLATE "C" NOT NULL,
	lease text        COLLATE "C" NOT NULL,
	until timestamptz NOT NULL,
	PRIMARY KEY (name, lease)
);
CREATE INDEX tombs_until ON @tombs (until);

-- Losses that renewals of a session report.
CREATE TABLE @losses (
	session text        COLLATE "C" NOT NULL,
	lease   text        COLLATE "C" NOT NULL,
	cause   text        NOT NULL,
	reason  text        NOT NULL,
	until   timestamptz NOT NULL,
	PRIMARY KEY (session, lease)
);
CREATE INDEX losses_until ON @losses (until);

INSERT INTO @meta (id, version, floor, watched) VALUES (1, 3, 0, '-infinity');
