package pglock

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-io/holdfast/backend"
)

// facts reads the settings of a server that its promises depend on. A role needs no privilege for
// them, except for the number of standbys, which is none where it may not see them.
const facts = `SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
	current_setting('synchronous_standby_names') = '' OR current_setting('synchronous_commit') = 'local', (SELECT count(*) FROM pg_stat_replication)`

// Examine checks the settings of the server: whether what it has committed survives a crash and a
// fail-over, whether there is a pooler in between, and whether the role lacks a right. It implements
// backend.Examiner.
func (b *Backend) Examine(ctx context.Context) ([]backend.Finding, error) {
	out, err := b.rights().findings(ctx)
	if err != nil {
		return nil, unavailable("examine", false, err)
	}
	err = b.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		var recovering, fsync, pages, alone bool
		var pid uint32
		var standbys int
		if err := c.QueryRow(ctx, facts).Scan(&pid, &recovering, &fsync, &pages, &alone, &standbys); err != nil {
			return err //nolint:wrapcheck // see unavailable
		}
		found := func(bad bool, text string) {
			if bad {
				out = append(out, text)
			}
		}
		found(recovering, "this server is a standby: it takes no locks")
		found(!fsync, "fsync is off: a crash of the machine loses grants, and a lock may then be granted twice")
		found(!pages && fsync, "full_page_writes is off: a crash of the machine can damage the tables")
		found(standbys > 0 && alone,
			fmt.Sprintf("%d standbys follow, and a commit waits for none (synchronous_standby_names, synchronous_commit): a fail-over loses the newest grants, and a lock may then be granted twice", standbys))
		found(pid != c.Conn().PgConn().PID() && !b.deaf, "a pooler is in between: where it does not keep a connection for a client, say listen=false")
		return nil
	})
	if err != nil {
		return nil, unavailable("examine", false, err)
	}
	return backend.Findings(false, out...), nil
}

// Examine checks whether the role lacks a right. It implements backend.Examiner.
func (b *Advisory) Examine(ctx context.Context) ([]backend.Finding, error) {
	out, err := b.rights().findings(ctx)
	if err != nil {
		return nil, advisoryStore{b}.Unavailable("examine", false, err)
	}
	return backend.Findings(false, out...), nil
}
