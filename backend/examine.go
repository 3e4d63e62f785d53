package backend

import "context"

// Examiner is a Backend that can look at its store for versions and settings that weaken
// what it promises. It is for tools and people; no lock depends on it.
type Examiner interface {
	// Examine gives what it found, a sentence each; none where nothing is known to be
	// wrong. What the store does not let it see is a sentence, too. It changes nothing,
	// and may be called at any time before Close.
	//
	// Errors: *UnavailableError; ErrClosed; ctx's cause.
	Examine(ctx context.Context) ([]string, error)
}

// Redundant is a Backend on several servers that goes on while some of them are away.
type Redundant interface {
	// Away asks each of the servers, and tells those that do not answer, a sentence each;
	// none where all do. It changes nothing, and may be called at any time before Close.
	//
	// Errors: *UnavailableError where too few answer to take any lock; ErrClosed; ctx's
	// cause.
	Away(ctx context.Context) ([]string, error)
}

// Guarded is a Backend whose store can be in quarantine: see QuarantineError.
type Guarded interface {
	// Quarantined asks whether the store grants locks, and returns nil where it does. It
	// changes nothing, and may be called at any time before Close.
	//
	// Errors: *UnavailableError, around a *QuarantineError while there is a quarantine;
	// ErrClosed; ctx's cause.
	Quarantined(ctx context.Context) error
}
