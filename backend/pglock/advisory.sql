-- What is known of advisory locks. The schema stands in place of each at sign.
-- The locks themselves are the server's. A row counts only while the connection that made
-- it has its lock still. Connections do not survive the server, so that tables which it
-- empties after a crash (UNLOGGED) are enough, and cost no wait for the disk.

CREATE TABLE @meta (
	id      integer PRIMARY KEY CHECK (id = 1),
	version integer NOT NULL
);

-- A token is the sum of the next number and of what stands in epoch: the microseconds of
-- the clock of when that row was made. The row is gone after a crash, a fail-over and a
-- restore, with all connections, and made again by the first of them. For the numbers may
-- go back then: one that a transaction takes is on disk when the transaction that wrote
-- the log of its thirty-two is, which may be another one. There are less than a million
-- grants a second, so the sum is greater than all before.
CREATE SEQUENCE @tokens AS bigint;

CREATE UNLOGGED TABLE @epoch (
	id    integer PRIMARY KEY CHECK (id = 1),
	above bigint  NOT NULL
);

-- One row for each connection that has locks. It has the lock of its own number.
CREATE UNLOGGED TABLE @sessions (
	conn    bigint      PRIMARY KEY,
	pid     integer     NOT NULL,
	session text        COLLATE "C" NOT NULL,
	expires timestamptz NOT NULL, -- unless it is renewed
	made    timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE UNLOGGED TABLE @leases (
	name     text        COLLATE "C" NOT NULL,
	lease    text        COLLATE "C" NOT NULL,
	key      bigint      NOT NULL, -- of the advisory lock
	shared   boolean     NOT NULL,
	conn     bigint      NOT NULL,
	owner    text        NOT NULL,
	note     text        NOT NULL,
	token    bigint      NOT NULL,
	since    timestamptz NOT NULL,
	marked   boolean     NOT NULL DEFAULT false, -- somebody asks for it back
	released boolean     NOT NULL DEFAULT false, -- and that is no loss
	reason   text        NOT NULL DEFAULT '',
	PRIMARY KEY (name, lease)
);
CREATE INDEX leases_conn ON @leases (conn);

CREATE UNLOGGED TABLE @waiters (
	name   text        COLLATE "C" NOT NULL,
	lease  text        COLLATE "C" NOT NULL,
	conn   bigint      NOT NULL,
	shared boolean     NOT NULL,
	owner  text        NOT NULL,
	note   text        NOT NULL,
	asked  timestamptz NOT NULL,
	n      bigint      GENERATED ALWAYS AS IDENTITY,
	PRIMARY KEY (name, lease, conn)
);
CREATE INDEX waiters_conn ON @waiters (conn);

INSERT INTO @meta (id, version) VALUES (1, 1);
