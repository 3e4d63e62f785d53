package wire

// ContentTypeProblem is the media type of a Problem.
const ContentTypeProblem = "application/problem+json"

// ContentTypeLines is the media type of an answer that is a JSON object in each line.
const ContentTypeLines = "application/x-ndjson"

// The types of problems. They are stable: clients may depend on them.
const (
	TypeHeld             = "urn:holdfast:problem:held"               // 409
	TypeLost             = "urn:holdfast:problem:lost"               // 410
	TypeInvalid          = "urn:holdfast:problem:invalid"            // 400
	TypeLimit            = "urn:holdfast:problem:limit"              // 400
	TypeUnsupported      = "urn:holdfast:problem:unsupported"        // 501
	TypeUnavailable      = "urn:holdfast:problem:unavailable"        // 503: the backend is unavailable
	TypeQuarantine       = "urn:holdfast:problem:quarantine"         // 503: the store grants nothing yet
	TypeRefused          = "urn:holdfast:problem:refused"            // 503: the store refuses, as for want of a right
	TypeOverloaded       = "urn:holdfast:problem:overloaded"         // 503: too many requests at the same time
	TypeStopping         = "urn:holdfast:problem:stopping"           // 503: the server stops
	TypeTooMany          = "urn:holdfast:problem:too-many"           // 429
	TypeUnauthenticated  = "urn:holdfast:problem:unauthenticated"    // 401
	TypeForbidden        = "urn:holdfast:problem:forbidden"          // 403
	TypeNotFound         = "urn:holdfast:problem:not-found"          // 404
	TypeMethod           = "urn:holdfast:problem:method-not-allowed" // 405
	TypeTimeout          = "urn:holdfast:problem:timeout"            // 408
	TypeOtherStore       = "urn:holdfast:problem:other-store"        // 412: the client uses another store: HeaderStore
	TypeTooLarge         = "urn:holdfast:problem:too-large"          // 413
	TypeUnsupportedMedia = "urn:holdfast:problem:unsupported-media"  // 415
)

// Problem is an error as defined by RFC 9457.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`

	// Field, Value and Bound say what was wrong with the request, and what is right.
	Field string `json:"field,omitempty"`
	Value string `json:"value,omitempty"`
	Bound string `json:"bound,omitempty"`
	// InForce is the limit in force, if another was requested; 0: none.
	InForce *int `json:"in_force,omitempty"`
	// Holders are holders of a lock that is held: some of them, if they are many.
	Holders []Holder `json:"holders,omitzero"`
	// HolderCount is the number of leases held, as far as that is known without reading all
	// of them. 0, of an older server: as many as Holders has.
	HolderCount int `json:"holder_count,omitempty"`
	// Position in the queue: 1 is next. For a request that does not wait: where it would be.
	Position int `json:"position,omitempty"`
	// MayHold says that the request may have worked nevertheless.
	MayHold *bool `json:"may_hold,omitempty"`
	// Cause and Reason of a loss, if known. A quarantine and a refusal of the store have a Reason, too.
	Cause  string `json:"cause,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Remedy is what an operator can do about a refusal of the store, which Backend names.
	Remedy string `json:"remedy,omitempty"`
	// For a quarantine: the store that is in it, the time that is left of it, and the
	// parameter of the store's URL that turns it off.
	Backend   string   `json:"backend,omitempty"`
	Left      Duration `json:"left,omitzero"`
	Parameter string   `json:"parameter,omitempty"`
	// Capabilities of the backend, when GET /readyz refuses.
	Capabilities *Capabilities `json:"capabilities,omitempty"`
}
