package wire

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/fence"
)

// Duration is a time.Duration that is encoded as a string: "30s".
type Duration time.Duration

// MarshalJSON returns the string of the duration.
func (d Duration) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, time.Duration(d).String()), nil
}

// UnmarshalJSON accepts a string in Go's syntax. A bare number is an error: it has no unit.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	err := json.Unmarshal(b, &s)
	v, bad := time.ParseDuration(s)
	if err != nil || bad != nil {
		return &json.UnmarshalTypeError{Value: fmt.Sprintf("%.40s", b), Type: reflect.TypeFor[Duration]()} // package json adds the field
	}
	*d = Duration(v)
	return nil
}

// String returns the duration in Go's syntax.
func (d Duration) String() string { return time.Duration(d).String() }

// timeFormat is RFC 3339 in UTC with milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z"

// FormatTime returns t in the format of the API.
func FormatTime(t time.Time) string { return t.UTC().Format(timeFormat) }

// Time is a time.Time that is encoded as RFC 3339 in UTC with milliseconds.
type Time struct{ time.Time }

// MarshalJSON returns the string of the time, cut to milliseconds.
func (t Time) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, FormatTime(t.Time)), nil
}

// UnmarshalJSON accepts any RFC 3339 time.
func (t *Time) UnmarshalJSON(b []byte) error {
	var s string
	err := json.Unmarshal(b, &s)
	v, bad := time.Parse(time.RFC3339Nano, s)
	if err != nil || bad != nil {
		return fmt.Errorf("time %.40s: must be RFC 3339", b)
	}
	t.Time = v
	return nil
}

// AcquireRequest is the body of POST /v1/locks/{name}. All fields are optional.
type AcquireRequest struct {
	// TTL of the lease, which ends by itself. Default: "30s".
	TTL Duration `json:"ttl,omitzero"`
	// Wait is the maximum time in the queue. Default: "0s", do not wait.
	Wait Duration `json:"wait,omitzero"`
	// Owner and Note are for people.
	Owner string `json:"owner,omitempty"`
	// Shared takes the lock together with other shared holders.
	Shared bool `json:"shared,omitempty"`
	// Limit above 1 makes it a semaphore of that many permits. Default: 1.
	Limit int `json:"limit,omitempty"`
	// Permits that the lease takes, if there is a limit above 1. Default: 1.
	Permits int    `json:"permits,omitempty"`
	Note    string `json:"note,omitempty"`
	// Lease is created by the client, so that it may retry when the answer was lost. Default:
	// the server creates one.
	Lease string `json:"lease,omitempty"`
}

// RenewRequest is the body of PUT /v1/locks/{name}/leases/{lease}.
type RenewRequest struct {
	// TTL from now. Default: the TTL that the lease has.
	TTL Duration `json:"ttl,omitzero"`
}

// RenewManyRequest is the body of POST /v1/leases/renew.
type RenewManyRequest struct {
	Leases []LeaseRef `json:"leases"`
}

// BatchRequest is the body of POST /v1/leases/batch.
type BatchRequest struct {
	Acquire []BatchAcquire `json:"acquire,omitempty"`
	Release []BatchRelease `json:"release,omitempty"`
}

// BatchAcquire is one lock to take if it is free: an [AcquireRequest] that does not wait,
// with a lease that the client created. Fields that are 0 have their defaults.
type BatchAcquire struct {
	Name    string   `json:"name"`
	Lease   string   `json:"lease"`
	TTL     Duration `json:"ttl,omitzero"`
	Owner   string   `json:"owner,omitempty"`
	Shared  bool     `json:"shared,omitempty"`
	Limit   int      `json:"limit,omitempty"`
	Permits int      `json:"permits,omitempty"`
	Note    string   `json:"note,omitempty"`
}

// BatchRelease is one lease to release.
type BatchRelease struct {
	Name  string `json:"name"`
	Lease string `json:"lease"`
}

// LeaseRef is one lease to renew.
type LeaseRef struct {
	Name  string   `json:"name"`
	Lease string   `json:"lease"`
	TTL   Duration `json:"ttl,omitzero"`
}

// Grant is the answer to an acquire: a lease that is held.
type Grant struct {
	Name  string      `json:"name"`
	Lease string      `json:"lease"`
	Token fence.Token `json:"token"`
	Owner string      `json:"owner"`
	// TTL: the lease cannot end before this much time has passed since the request was sent.
	// It is what was requested, or less if the lease was held before.
	TTL Duration `json:"ttl"`
	// ExpiresAt by the server's wall clock.
	ExpiresAt Time `json:"expires_at"`
}

// RenewManyResponse is the answer to POST /v1/leases/renew: a result for each lease,
// in order.
type RenewManyResponse struct {
	Leases []RenewResult `json:"leases"`
}

// RenewResult is the result of one renewal: Error is set, or the others are. TTL and
// ExpiresAt are as in [Grant].
type RenewResult struct {
	Name      string      `json:"name"`
	Lease     string      `json:"lease"`
	Token     fence.Token `json:"token,omitzero"`
	TTL       Duration    `json:"ttl,omitzero"`
	ExpiresAt Time        `json:"expires_at,omitzero"`
	Error     *Problem    `json:"error,omitempty"`
}

// The values of BatchResult.Op.
const (
	OpAcquire = "acquire"
	OpRelease = "release"
)

// BatchResult is a line of the answer to POST /v1/leases/batch: the result of one item. Error
// is set, or it worked; then Token, TTL and ExpiresAt of an acquire are as in [Grant].
type BatchResult struct {
	// Op and Item identify the item: the list, and the place in it, from 0.
	Op        string      `json:"op"`
	Item      int         `json:"item"`
	Name      string      `json:"name"`
	Lease     string      `json:"lease"`
	Token     fence.Token `json:"token,omitzero"`
	TTL       Duration    `json:"ttl,omitzero"`
	ExpiresAt Time        `json:"expires_at,omitzero"`
	Error     *Problem    `json:"error,omitempty"`
	// Time is the server's wall clock, if there is an Error: the times in it are to be
	// compared with this one.
	Time Time `json:"time,omitzero"`
}

// Lock is the state of a lock.
type Lock struct {
	Name    string   `json:"name"`
	Limit   int      `json:"limit"`
	Holders []Holder `json:"holders"`
	Waiters []Waiter `json:"waiters"`
	// MayBreak: the caller may break the lock. Set by GET /v1/locks/{name} only.
	MayBreak bool `json:"may_break,omitempty"`
}

// Holder is a lease that is held.
type Holder struct {
	// Lease is empty if the lease is another client's and the caller may not break the lock.
	Lease     string      `json:"lease"`
	Owner     string      `json:"owner"`
	Token     fence.Token `json:"token"`
	Shared    bool        `json:"shared"`
	Permits   int         `json:"permits"`
	Note      string      `json:"note"`
	Since     Time        `json:"since"`
	ExpiresAt Time        `json:"expires_at"`
}

// Waiter is a request in the queue.
type Waiter struct {
	Owner    string `json:"owner"`
	Shared   bool   `json:"shared"`
	Permits  int    `json:"permits"`
	Note     string `json:"note"`
	Since    Time   `json:"since"`
	Position int    `json:"position"`
	// Lease is returned to callers that request it with HeaderWaiterLeases, if it is theirs or they may
	// break the lock. Owner and Note are empty for others, too.
	Lease string `json:"lease,omitempty"`
}

// List is the answer to GET /v1/locks.
type List struct {
	Locks []Lock `json:"locks"`
	// Next is the "after" of the next page; empty on the last one.
	Next string `json:"next"`
}

// Break is the answer to DELETE /v1/locks/{name}.
type Break struct {
	Name string `json:"name"`
	// Token is above that of every lease broken.
	Token fence.Token `json:"token"`
	// Broken are the leases that lost the lock.
	Broken []Holder `json:"broken"`
}

// Event is the data of a server-sent event. The name of the event is its kind.
type Event struct {
	Name   string      `json:"name"`
	Lease  string      `json:"lease"`
	Owner  string      `json:"owner"`
	Shared bool        `json:"shared"`
	Token  fence.Token `json:"token"`
	Reason string      `json:"reason"`
	At     Time        `json:"at"`
}

// Losses is the answer to GET /v1/losses.
type Losses struct {
	Losses []Loss `json:"losses"`
}

// Loss is a lease that was taken from its holder.
type Loss struct {
	Kind string `json:"kind"` // broken, or expired
	Event
}

// Health is the answer to GET /healthz and, when all is well, to GET /readyz.
type Health struct {
	Status string `json:"status"`
	// Backend and the capabilities are returned by /readyz.
	Backend      string        `json:"backend,omitempty"`
	Capabilities *Capabilities `json:"capabilities,omitempty"`
}

// SignInRequest is the body of POST /v1/session.
type SignInRequest struct {
	// Break: the sign-in may break locks, if the token may. Default: it only reads.
	Break bool `json:"break,omitempty"`
}

// Caller is the answer to GET and POST /v1/session: who the client is, on which server.
type Caller struct {
	// Principal is empty if the server does not identify clients.
	Principal string `json:"principal"`
	// Policy: the server decides who may do what. Otherwise there are no sign-ins.
	Policy bool `json:"policy"`
	// Cookie: the cookie of a sign-in identified the client, until EndsAt. Break: the sign-in may break locks.
	Cookie bool `json:"cookie"`
	Break  bool `json:"break"`
	EndsAt Time `json:"ends_at,omitzero"`
	// Backend and Version of the server.
	Backend string `json:"backend"`
	Version string `json:"version"`
}

// Capabilities is what the server's backend can do.
type Capabilities struct {
	Shared    bool     `json:"shared"`
	Permits   bool     `json:"permits"`
	FIFO      bool     `json:"fifo"`
	Push      bool     `json:"push"`
	Watch     bool     `json:"watch"`
	Durable   bool     `json:"durable"`
	TokenKind string   `json:"token_kind"`
	MinTTL    Duration `json:"min_ttl"`
	MaxTTL    Duration `json:"max_ttl"`
	ExpiryLag Duration `json:"expiry_lag"`
	MaxWait   Duration `json:"max_wait"` // of one acquire
}

// Headers of our own.
const (
	// HeaderKeepPlace is set by a client that creates its own lease IDs and retries: a
	// duration for which its place in the queue is kept between two requests.
	HeaderKeepPlace = "Holdfast-Keep-Place"
	// HeaderWaited is set on a grant: how long it was queued.
	HeaderWaited = "Holdfast-Waited"
	// HeaderWaiterLeases, "true", requests the lease IDs of waiters too.
	HeaderWaiterLeases = "Holdfast-Waiter-Leases"
	// HeaderTime is the server's wall clock when it answered: the times in the answer are to
	// be compared with this one.
	HeaderTime = "Holdfast-Time"
	// HeaderStore is in an answer the ID of the server's store, if it is known, and in a request that of the store
	// that the client uses. A server of another store refuses the request with TypeOtherStore.
	HeaderStore = "Holdfast-Store"
	// HeaderRequestID names the request in the answer and in the server's log. A client or a
	// proxy may choose it: 1 to 64 letters, digits and . _ : -.
	HeaderRequestID = "X-Request-Id"
	// HeaderPage is set by the page at / on each request that changes something. A request that another
	// site makes a browser send cannot have it.
	HeaderPage = "Holdfast-Page"
	// HeaderActor names the actor that breaks a lock, as claimed by the client.
	HeaderActor = "Holdfast-Actor"
)
