package redislock

import (
	"context"
	"errors"
	"sync"
)

// router is the transport to the server of a Cluster, or of a Sentinel group, that has the
// data now. All keys share a slot, so that is one server at a time.
//
// It follows MOVED, and never ASK. While a slot is migrating its keys are on two servers, and
// a script that was let in on the new one would take keys that have not arrived for keys that
// do not exist. A caller gets an error during that time: the backend is unavailable.
type router struct {
	connect func(ctx context.Context) (transport, error) // to the server that has the data
	finding chan struct{}                                // capacity 1: one goroutine at a time connects

	mu      sync.Mutex
	current *routed
	closed  bool
}

func newRouter(open func(ctx context.Context) (transport, error)) *router {
	return &router{connect: open, finding: make(chan struct{}, 1)}
}

// routed is the link to one server, for as long as that server has the data.
type routed struct {
	transport

	life context.Context //nolint:containedctx // ends with the link
	end  context.CancelFunc
}

// errClosedLink means that the transport was closed.
var errClosedLink = errors.New("redis: the connections were closed")

// to returns the link to the server that has the data, as far as is known.
func (r *router) to(ctx context.Context) (*routed, error) {
	if l, err := r.known(); l != nil || err != nil {
		return l, err
	}
	select {
	case r.finding <- struct{}{}:
		defer func() { <-r.finding }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if l, err := r.known(); l != nil || err != nil {
		return l, err // another goroutine was faster
	}
	link, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	l := &routed{transport: link}
	l.life, l.end = context.WithCancel(context.Background()) //nolint:contextcheck // it outlives the call
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		l.end()
		l.close()
		return nil, errClosedLink
	}
	r.current = l
	return l, nil
}

func (r *router) known() (*routed, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errClosedLink
	}
	return r.current, nil
}

// leave drops the link to a server that does not, or may not, have the data any more.
// Requests in progress there fail with an unknown outcome.
func (r *router) leave(l *routed) {
	r.mu.Lock()
	same := r.current == l
	if same {
		r.current = nil
	}
	r.mu.Unlock()
	if same {
		l.end()
		l.close()
	}
}

// send sends a command to the server that has the data. One that a server refused because it does not have the data
// is sent to the server that has it.
func (r *router) send(ctx context.Context, cmd ...string) (reply, error) {
	const attempts = 3
	var got reply
	var err error
	for range attempts {
		var l *routed
		if l, err = r.to(ctx); err != nil {
			return reply{}, err
		}
		if got, err = l.send(ctx, cmd...); err == nil || errors.Is(err, errUnknown) || errors.Is(err, ErrReplicas) {
			return got, err
		}
		var refused *serverError
		isAnswer := errors.As(err, &refused)
		moved := isAnswer && (refused.Code == "MOVED" || refused.Code == "READONLY")
		if !isAnswer || moved {
			r.leave(l)
		}
		if !moved {
			break
		}
	}
	return got, err
}

// listen subscribes at the server that has the data. When another server takes over, the
// connection breaks, because leave closes it.
func (r *router) listen(ctx context.Context, channel string, ready func(), deliver func(payload string)) error {
	l, err := r.to(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(l.life, func() { cancel(errMoved) })
	defer stop()
	return l.listen(ctx, channel, ready, deliver)
}

// hangUp ends what the link itself does not end with its context.
func (r *router) hangUp() {
	if l, _ := r.known(); l != nil {
		l.hangUp()
	}
}

func (r *router) close() {
	r.mu.Lock()
	l := r.current
	r.closed, r.current = true, nil
	r.mu.Unlock()
	if l != nil {
		l.end()
		l.close()
	}
}

// errMoved means that another server has the data now.
var errMoved = errors.New("redis: another server has the data now")
