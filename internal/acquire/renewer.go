package acquire

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/liveness"
)

// The renewer is one goroutine. It sends the renewals that package liveness asks for, and has that end
// what was not renewed in time. It never waits for the backend: renewals run in goroutines of their
// own, while the deadlines keep counting.

const (
	// suspendTick is how often the renewer reads the clock while something is held. Timers stand
	// still while a machine is suspended, so a deadline may have passed before its timer fires.
	suspendTick = 250 * time.Millisecond
	// renewalsAtOnce bounds the concurrent requests where one request cannot name all timed leases.
	renewalsAtOnce = 4
)

// observer is what package liveness reports to, with Agent.Mu held.
type observer struct {
	Observer
	a *Agent
}

// Wake implements liveness.Observer.
func (o observer) Wake() { o.a.Wake() }

// Ended implements liveness.Observer.
func (o observer) Ended(s *liveness.Session) {
	if owner, ok := o.a.open[s]; ok {
		delete(o.a.open, s)
		owner.waiting.interrupt(errSessionEnded)
	}
}

// Wake has the renewer do what is due.
func (a *Agent) Wake() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// keep runs the renewer.
func (a *Agent) keep() {
	defer close(a.kept)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-a.background.Done():
			return
		case <-a.wake:
		case <-timer.C:
		}
		timer.Reset(a.turn())
	}
}

// turn does everything that is due and returns the time until the next turn.
func (a *Agent) turn() time.Duration {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	longest := time.Hour
	if a.Clock.Jumps() {
		longest = suspendTick
	}
	a.actOnLosses()
	due, idle := a.Live.Step(a.Clock.Now(), longest)
	if !a.Closed() {
		a.startRenewals(due)
	}
	return idle
}

// startRenewals sends what is due in as few requests as the backend allows. No session waits for the
// renewal of another one. Mu is held.
func (a *Agent) startRenewals(due liveness.Due) {
	all := due.Parts(a.caps.MaxRenew)
	n := 0
	for n < len(all) && len(all[n].Sessions) > 0 {
		p := all[n]
		a.work.run(func() { a.renew(p) })
		n++
	}
	further := make(chan liveness.Due, len(all))
	for _, p := range all[n:] {
		further <- p
	}
	close(further)
	for range min(renewalsAtOnce, len(further)) {
		a.work.run(func() {
			for p := range further {
				a.renew(p)
			}
		})
	}
}

// renew sends one request and applies its answer.
func (a *Agent) renew(due liveness.Due) {
	req := due.Request()
	a.Mu.Lock()
	patience := due.Patience(a.Clock.Now())
	a.Mu.Unlock()
	ctx, cancel := context.WithTimeout(a.background, patience)
	defer cancel()
	sent := a.Clock.Now()
	res, err := a.Renew(ctx, req)
	now := a.Clock.Now()
	if err == nil {
		a.back(true)
	} else if IsUnavailable(err) {
		a.warnAway(err)
	}
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.Live.Answered(due, sent, now, res, err)
}

var errAnswer = errors.New("the answer does not fit the question")

// Renew sends one request and checks that its answer is for the same leases.
func (a *Agent) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	res, err := a.Backend.Renew(ctx, req)
	if err == nil && len(res.Leases) != len(req.Leases) {
		err = &backend.UnavailableError{Backend: a.caps.Name, Op: "renew", Err: errAnswer}
	}
	return res, err
}
