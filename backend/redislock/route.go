package redislock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/internal/redisprogram"
	"github.com/holdfast-io/holdfast/internal/storeurl"
)

// router is the transport to the server of a Cluster, or of a Sentinel group, that has the
// data now. All keys share a slot, so that is one server at a time.
//
// It follows MOVED, and never ASK. While a slot is migrating its keys are on two servers, and
// a script that was let in on the new one would take keys that have not arrived for keys that
// do not exist. A caller gets an error during that time: the backend is unavailable.
type router struct {
	program  redisprogram.Program
	replicas *replication
	find     func(ctx context.Context) (addr string, err error)
	dial     func(ctx context.Context, addr string) (rueidis.Client, error)
	finding  chan struct{} // capacity 1: one goroutine at a time locates the server

	mu      sync.Mutex
	current *routed
	closed  bool
}

// routed is the link to one server, for as long as that server has the data.
type routed struct {
	*rueidisLink

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
	addr, err := r.find(ctx)
	if err != nil {
		return nil, err
	}
	client, err := r.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	l := &routed{rueidisLink: newRueidisLink(client, r.program, true)}
	l.replicas = r.replicas
	l.life, l.end = context.WithCancel(context.Background()) //nolint:contextcheck // it outlives the call
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		l.end()
		client.Close()
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

// on calls f with the link. A request that a server refused because it does not have the data
// is sent to the server that has it.
func (r *router) on(ctx context.Context, f func(*rueidisLink) error) error {
	const attempts = 3
	var err error
	for range attempts {
		var l *routed
		if l, err = r.to(ctx); err != nil {
			return err
		}
		if err = f(l.rueidisLink); err == nil || errors.Is(err, errUnknown) || errors.Is(err, ErrReplicas) {
			return err
		}
		var refused *serverError
		isAnswer := errors.As(err, &refused)
		moved := isAnswer && (refused.Code == "MOVED" || refused.Code == "READONLY")
		if !isAnswer || moved {
			r.leave(l)
		}
		if !moved {
			return err
		}
	}
	return err
}

func (r *router) run(ctx context.Context, load bool, key string, args []string) (reply, error) {
	if ctx.Value(noDial{}) != nil {
		return reply{}, errNoConnection
	}
	var got reply
	err := r.on(ctx, func(l *rueidisLink) error {
		var err error
		got, err = l.run(ctx, load, key, args)
		return err
	})
	return got, err
}

func (r *router) remove(ctx context.Context, key, member string) (bool, error) {
	if ctx.Value(noDial{}) != nil {
		return false, errNoConnection
	}
	gone := false
	err := r.on(ctx, func(l *rueidisLink) error {
		var err error
		gone, err = l.remove(ctx, key, member)
		return err
	})
	return gone, err
}

// config leaves out the settings for the disk: they say nothing about a server that takes
// over.
func (r *router) config(ctx context.Context, _ ...string) (map[string]string, error) {
	var got map[string]string
	err := r.on(ctx, func(l *rueidisLink) error {
		var err error
		got, err = l.config(ctx, "maxmemory*")
		return err
	})
	return got, err
}

func (r *router) info(ctx context.Context, section string) (string, error) {
	var got string
	err := r.on(ctx, func(l *rueidisLink) error {
		var err error
		got, err = l.info(ctx, section)
		return err
	})
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

// hangUp does nothing: in a context of lone nothing is sent.
func (r *router) hangUp() {}

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

// guides are the servers that know which server has the data.
type guides struct {
	option rueidis.ClientOption // to reach them
	hosts  []string
}

// each queries all of them concurrently and calls take with each answer, until take returns
// true.
func (g *guides) each(ctx context.Context, ask func(context.Context, rueidis.Client, string) (string, error), take func(string) bool) error {
	type said struct {
		text string
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan said, len(g.hosts))
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, host := range g.hosts {
		asking.Go(func() {
			client, err := connect(ctx, bounded(ctx, secureFor(g.option, host)))
			if err != nil {
				answers <- said{err: fmt.Errorf("%s: %w", host, err)}
				return
			}
			defer client.Close()
			text, err := ask(ctx, client, host)
			if err != nil {
				err = fmt.Errorf("%s: %w", host, err)
			}
			answers <- said{text, err}
		})
	}
	var errs []error
	for range g.hosts {
		select {
		case a := <-answers:
			if a.err != nil {
				errs = append(errs, a.err)
			} else if take(a.text) {
				return nil
			}
		case <-ctx.Done():
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
	}
	return errors.Join(append(errs, errNobodyKnows)...)
}

// bounded makes the connection of a client end with ctx, also while it is being made.
func bounded(ctx context.Context, option rueidis.ClientOption) rueidis.ClientOption {
	dial := option.DialCtxFn
	option.DialCtxFn = func(_ context.Context, addr string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, addr, d, secure)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() }) // the user of the connection gets the error
		}
		return conn, err
	}
	return option
}

var errNobodyKnows = errors.New("redis: none of the addresses reports which server has the data")

// findBySentinel queries all sentinels. More than half of them must name the same server: one
// that was cut off from the others may name the previous master.
func (g *guides) findBySentinel(master string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		votes, found := make(map[string]int), ""
		err := g.each(ctx, func(ctx context.Context, c rueidis.Client, _ string) (string, error) {
			addr, err := c.Do(redisprogram.Undated(ctx), c.B().Arbitrary("SENTINEL", "GET-MASTER-ADDR-BY-NAME").Args(master).Build()).AsStrSlice()
			switch {
			case rueidis.IsRedisNil(err):
				return "", fmt.Errorf("the sentinel does not know the master %s", storeurl.Quote(master))
			case err != nil:
				return "", fromRueidis(err)
			case len(addr) != 2: // host and port
				return "", errReply
			}
			return net.JoinHostPort(addr[0], addr[1]), nil
		}, func(addr string) bool {
			votes[addr]++
			if votes[addr] > len(g.hosts)/2 {
				found = addr
			}
			return found != ""
		})
		return found, err
	}
}

// findInCluster requests a key: the owner of its slot answers, and the others name the owner.
func (g *guides) findInCluster(key string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		found := ""
		err := g.each(ctx, func(ctx context.Context, c rueidis.Client, host string) (string, error) {
			err := c.Do(redisprogram.Undated(ctx), c.B().Exists().Key(key).Build()).Error()
			if err == nil {
				return host, nil
			}
			err = fromRueidis(err)
			var refused *serverError
			if !errors.As(err, &refused) {
				return "", err
			}
			switch f := strings.Fields(refused.Text); {
			case refused.Code == "ASK" || refused.Code == "TRYAGAIN": // it still has the slot
				return host, nil
			case refused.Code == "MOVED" && len(f) == 3 && strings.HasPrefix(f[2], ":"): // on the same host
				return hostOf(host) + f[2], nil
			case refused.Code == "MOVED" && len(f) == 3:
				return f[2], nil
			}
			return "", err
		}, func(addr string) bool {
			found = addr
			return true
		})
		return found, err
	}
}
