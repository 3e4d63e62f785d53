package sqllease

import (
	"context"
	"errors"

	"github.com/holdfast-io/holdfast/backend"
)

// A database may show a commit to others before it survives a crash: InnoDB before its log is
// written, PostgreSQL before the standbys that it has to wait for have it. The caller whose
// commit it is does not get an answer before, but one that reads it could: a waiter its grant,
// whoever asks again what the lost reply said. After the crash the grant is not there, and its
// token is issued again.
//
// So an answer that rests on a read is returned after a commit of a write that was made after
// the read. A log has one order: what makes that commit durable makes durable all that was
// visible before. Within a transaction that is its own commit, which is done also where it has
// nothing else to write; outside of one it is Store.Sync.
//
// A refusal needs none of that: that a lock was held, by whom, or with which limit, is nothing
// that anybody acts on for longer than the next attempt. Inspect and List are for people, who
// see what is visible.

// synced waits until what was read survives a crash.
func (b *Leases) synced(ctx context.Context, op string) error {
	return b.direct(ctx, op, b.store.Sync)
}

// rests reports whether any of the answers is more than a refusal, so that it must not be
// undone by a crash.
func rests(reqs []*request, answers []error) bool {
	for i, err := range answers {
		var held *backend.HeldError
		var limit *backend.LimitError
		if !reqs[i].mute && !errors.As(err, &held) && !errors.As(err, &limit) {
			return true
		}
	}
	return false
}
