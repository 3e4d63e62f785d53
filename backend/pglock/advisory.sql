-- The records of advisory locks. Each at sign is replaced by the schema.
-- The server itself holds the locks. A row counts only while the connection that made it
-- still has its lock. Connections do not survive the server, so tables that it empties after
-- a crash (UNLOGGED) are enough. They cost no wait for the disk.

CREATE TABLE @meta (
	id      integer PRIMARY KEY CHECK (id = 1),
	version integer NOT NULL
);

-- A token is the sum of the next number and of the value in epoch: the microseconds of the
-- clock when the first of the present connections registered, or the value before if that is
-- greater. The clock is needed because the numbers may go back when no connection is left: with a
-- crash, a fail-over, or an old copy that is restored. PostgreSQL logs thirty-two numbers of a
-- sequence at a time, and a number is on disk only when the transaction that logged them is, which
-- may be another one than the transaction that takes the number. There are less than a million
-- grants a second, so the sum is greater than all before.
CREATE SEQUENCE @tokens AS bigint;

CREATE UNLOGGED TABLE @epoch (
	id    integer PRIMARY KEY CHECK (id = 1),
	above bigint  NOT NULL
);

-- One row for each connection that has locks. The connection holds the lock of its own
-- number.
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
	marked   boolean     NOT NULL DEFAULT false, -- it was broken: its connection has to release it
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
