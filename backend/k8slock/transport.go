package k8slock

import (
	"net/http"

	"github.com/holdfast-io/holdfast/internal/conns"
)

// transport is one that can be closed. net/http closes idle connections only: one that was
// still being made for a request that has ended becomes idle later.
type transport struct {
	*http.Transport

	conns conns.Set
}

// close closes all connections, and those that are still being made.
func (t *transport) close() {
	t.CloseIdleConnections()
	t.conns.Close()
}
