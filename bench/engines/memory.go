package engines

import (
	"context"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/bench"
)

// Memory has our client without a server: it measures the cost of the client itself.
func Memory() *bench.Engine {
	store := memlock.New()
	contender := Ours()
	contender.Open = func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		return ours(shared{store}, cfg)
	}
	return &bench.Engine{Name: "memory", URL: "memory://", Local: true, Private: true, Contenders: []bench.Contender{contender}, Close: store.Close}
}

// shared is a backend that outlives its clients.
type shared struct{ backend.Backend }

// Close leaves the backend open.
func (shared) Close() error { return nil }
