package pglock

// A server, a database, a role, a pooler and a program may set what changes the meaning of a statement. These statements set what
// matters for a connection or, where the next transaction may have another connection, for a transaction ($3). $1 is how long the
// server lets a process sleep in a transaction, and $2 how long a statement waits for a row.
const (
	// Why, in this order:
	//
	//   - Functions and operators are those of PostgreSQL.
	//   - A policy that hides rows is an error: a lease that is not seen would be granted again.
	//   - Two clients that use one name send the same text.
	//   - Where nothing is prepared, the library reads times, and writes arrays, as texts.
	//   - A statement without BEGIN sees what was committed before it.
	//   - The warning of notWaited arrives.
	//   - Nothing interrupts a request but its own time-outs. A process that sleeps in the middle of a transaction must not keep
	//     others from the locks. (PostgreSQL has transaction_timeout since version 17.)
	//   - A server whose operator has turned durability off must not grant what a crash forgets.
	//   - Planning takes longer than execution.
	settings = `SELECT set_config('search_path', 'pg_catalog, pg_temp', $3), set_config('row_security', 'off', $3), set_config('client_encoding', 'UTF8', $3),
		set_config('datestyle', 'ISO', $3), set_config('array_nulls', 'on', $3), set_config('default_transaction_isolation', 'read committed', $3),
		set_config('client_min_messages', 'warning', $3), set_config('statement_timeout', '0', $3),
		CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', '0', $3) END,
		set_config('idle_in_transaction_session_timeout', $1, $3), set_config('lock_timeout', $2, $3),
		set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, $3),
		set_config('jit', 'off', $3)`
	// With a nested loop over the requested keys every plan uses the indexes, whatever the tables were like when it was made, and
	// locks rows in the order of the keys.
	settingsOfLeases = settings + `, set_config('enable_hashjoin', 'off', $3), set_config('enable_mergejoin', 'off', $3),
		set_config('enable_seqscan', 'off', $3), set_config('enable_nestloop', 'on', $3), set_config('enable_indexscan', 'on', $3)`

	// idleLimit is much shorter than any wait of a caller, and much longer than a busy machine sleeps. After lockLimit other
	// requests continue without the row.
	idleLimit, lockLimit, noLimit = "5s", "250ms", "0"
)
