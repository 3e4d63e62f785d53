package sqllease

import (
	"context"

	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// A database may show a commit to other clients before the commit survives a crash: InnoDB before
// its log is written, PostgreSQL before the standbys that it has to wait for have it. The caller
// that made the commit gets no answer before that. A caller that reads the commit could get one: a
// waiter could get its grant, and a repeated request the answer of the lost reply. After the crash
// the grant does not exist, and its token is issued again.
//
// So an answer that rests on a read is returned after a commit of a write that was made after the
// read. A log has one order: what makes that commit durable makes durable all that was visible
// before. Within a transaction it is the transaction's own commit, which is made even where there
// is nothing else to write. Outside of a transaction it is Store.Sync.
//
// A refusal needs none of that: see lockstate.Refused. Inspect and List are for people, and return
// what is visible.

// synced waits until what was read survives a crash.
func (b *Leases) synced(ctx context.Context, op string) error {
	return b.direct(ctx, op, b.store.Sync)
}

// rests reports whether any of the answers is more than a refusal. A crash must not undo such an
// answer.
func rests(reqs []*request, answers []error) bool {
	for i, err := range answers {
		if !reqs[i].tends && !lockstate.Refused(err) {
			return true
		}
	}
	return false
}
