package backend

import "context"

// Examiner is a Backend that can check its store for versions and settings that weaken its
// guarantees. It is for tools and people; no lock depends on it.
type Examiner interface {
	// Examine returns its findings; none if nothing is known to be wrong. Something that the store does
	// not let it see is a finding too. It changes nothing, and may be called at any time before Close.
	//
	// Errors: *UnavailableError; ErrClosed; ctx's cause.
	Examine(ctx context.Context) ([]Finding, error)
}

// Finding is one result of Examiner.Examine.
type Finding struct {
	Text string // a sentence
	// Usual: many stores run like that, and no lock is granted twice for it. A store of one server is an
	// example: it is unavailable when that server is.
	Usual bool
}

// Findings returns a finding for each of the texts.
func Findings(usual bool, texts ...string) []Finding {
	all := make([]Finding, len(texts))
	for i, text := range texts {
		all[i] = Finding{Text: text, Usual: usual}
	}
	return all
}

// Redundant is a Backend on several servers that works while some of them are unavailable.
type Redundant interface {
	// Away asks each of the servers and returns a sentence for each that does not answer; none if
	// all answer. It changes nothing, and may be called at any time before Close.
	//
	// Errors: *UnavailableError if too few answer to grant any lock; ErrClosed; ctx's cause.
	Away(ctx context.Context) ([]string, error)
}

// Guarded is a Backend whose store can be in quarantine: see QuarantineError.
type Guarded interface {
	// Quarantined asks whether the store grants locks, and returns nil if it does. It changes
	// nothing, and may be called at any time before Close.
	//
	// Errors: *UnavailableError, around a *QuarantineError during a quarantine; ErrClosed; ctx's
	// cause.
	Quarantined(ctx context.Context) error
}

// Identified is a Backend that knows which store it uses. A server tells the ID to its clients, which refuse the server
// of another store: two stores would grant a lock twice.
type Identified interface {
	// StoreID returns the ID that this store has among all stores, in printable ASCII; empty as long as the store has
	// not answered. It sends nothing.
	StoreID() string
}
