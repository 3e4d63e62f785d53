package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// guides are the servers that know which server has the data.
type guides struct {
	hosts   []string
	connect func(ctx context.Context, host string) (program.Conn, error)
}

// query is a question to one of them.
type query func(ctx context.Context, c program.Conn, host string) (string, error)

func (g *guides) ask(ctx context.Context, host string, q query) (string, error) {
	conn, err := g.connect(ctx, host)
	if err != nil {
		return "", fmt.Errorf("%s: %w", host, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.HangUp)()
	text, err := q(ctx, conn, host)
	if err != nil {
		return "", fmt.Errorf("%s: %w", host, err)
	}
	return text, nil
}

// each queries all of them concurrently and calls take with each answer, until take returns
// true.
func (g *guides) each(ctx context.Context, q query, take func(string) bool) error {
	type said struct {
		text string
		err  error
	}
	answers := make(chan said, len(g.hosts))
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the wait: one that is silent is not waited for
	for _, host := range g.hosts {
		asking.Go(func() {
			text, err := g.ask(ctx, host, q)
			answers <- said{text, err}
		})
	}
	var errs []error
	refusals := 0
	for range g.hosts {
		select {
		case a := <-answers:
			if a.err != nil {
				errs = append(errs, a.err)
				if errors.Is(toKind("find", a.err), backend.ErrRefused) {
					refusals++
				}
			} else if take(a.text) {
				return nil
			}
		case <-ctx.Done():
			return &partialError{errors.Join(append(errs, context.Cause(ctx))...)}
		}
	}
	err := errors.Join(append(errs, errNobodyKnows)...)
	if refusals < len(g.hosts) {
		return &partialError{err}
	}
	return err
}

// partialError is the error of several servers. Some of them may refuse this client, but not all.
type partialError struct{ error }

func (e *partialError) Unwrap() error { return e.error }

var errNobodyKnows = errors.New("redis: none of the addresses reports which server has the data")

// master queries sentinels. More than half of them must name the same server: one that was cut off from the
// others may name the previous master.
func (g *guides) master(ctx context.Context, name string) (string, error) {
	votes, found := make(map[string]int), ""
	err := g.each(ctx, func(ctx context.Context, c program.Conn, _ string) (string, error) {
		r, err := c.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
		if err != nil {
			return "", err
		}
		if r.Kind != program.ListReply {
			return "", fmt.Errorf("the sentinel does not know the master %s", connect.Quote(name))
		}
		d := decode(r.List)
		return net.JoinHostPort(d.Text(), d.Text()), d.Err
	}, func(addr string) bool {
		votes[addr]++
		if votes[addr] > len(g.hosts)/2 {
			found = addr
		}
		return found != ""
	})
	return found, err
}

// owner requests a key from the servers of a Cluster: the owner of its slot answers, and the others name the owner.
func (g *guides) owner(ctx context.Context, key string) (string, error) {
	found := ""
	err := g.each(ctx, func(ctx context.Context, c program.Conn, host string) (string, error) {
		_, err := c.Do(ctx, "EXISTS", key)
		if err == nil {
			return host, nil
		}
		refused, ok := errors.AsType[*serverError](err)
		if !ok {
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
