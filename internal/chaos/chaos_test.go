package chaos_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/chaos"
)

func TestRelaysAndCounts(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	pass(t, client, server, "request")
	pass(t, server, client, "re")
	wait(t, p, "all is counted", func(s chaos.Stats) bool {
		return s.Requests.Passed == 12 && s.Replies.Passed == 9
	})
	s := p.Stats()
	if s.Accepted != 1 || s.Open != 1 || s.Requests.Kept != 0 || s.Requests.Dropped != 0 {
		t.Errorf("counters are %+v", s)
	}
}

func TestRelaysTheEndOfEachDirection(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	if err := client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	ended(t, server, io.EOF)
	pass(t, server, client, "still here")
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	ended(t, client, io.EOF)
	wait(t, p, "the connection has ended", func(s chaos.Stats) bool { return s.Open == 0 })
}

func TestRelaysAReset(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	if err := server.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	ended(t, client, errReset)
}

func TestDelayKeepsOrderAndIsNotADrip(t *testing.T) {
	t.Parallel()
	const delay, pieces = 300 * time.Millisecond, 100
	p, u := start(t)
	client, server := pair(t, p, u)
	p.Delay(chaos.Requests, delay, delay/10)
	begun := time.Now()
	var all strings.Builder
	for i := range pieces {
		s := string(rune('a' + i%26))
		all.WriteString(s)
		send(t, client, s)
	}
	expect(t, server, all.String())
	took := time.Since(begun)
	if took < delay {
		t.Errorf("arrived after %s, want %s at least", took, delay)
	}
	if took > pieces*delay/2 {
		t.Errorf("arrived after %s: pieces wait for one another", took)
	}
	pass(t, server, client, "replies are not delayed")
}

func TestHealDeliversWhatIsDelayed(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	p.Delay(chaos.Both, time.Hour, 0)
	send(t, client, "late")
	wait(t, p, "the request is kept", func(s chaos.Stats) bool { return s.Requests.Kept == 4 })
	silent(t, server)
	p.Heal()
	expect(t, server, "late")
	pass(t, client, server, "now")
}

func TestHoldKeepsEveryByteAndTheEnd(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	p.Hold(chaos.Requests)
	send(t, client, "one ")
	send(t, client, "two")
	if err := client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	wait(t, p, "the request is kept", func(s chaos.Stats) bool { return s.Requests.Kept == 7 })
	silent(t, server)
	pass(t, server, client, "replies flow")
	p.Release(chaos.Requests)
	expect(t, server, "one two")
	ended(t, server, io.EOF)
	if s := p.Stats(); s.Requests.Dropped != 0 {
		t.Errorf("a hold dropped something: %+v", s)
	}
}

func TestHoldBoundsWhatItKeeps(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(rand.N(256))
	}
	p, u := start(t)
	client, server := pair(t, p, u)
	p.Hold(chaos.Requests)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := client.Write(sent); err != nil {
			t.Error(err)
		}
	})
	wait(t, p, "the queue is full", func(s chaos.Stats) bool { return s.Requests.Kept > 4<<20-64<<10 })
	if s := p.Stats(); s.Requests.Kept > 4<<20 {
		t.Errorf("the queue exceeds its bound: %+v", s)
	}
	p.Heal()
	got := make([]byte, size)
	if _, err := io.ReadFull(server, got); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if !bytes.Equal(got, sent) {
		t.Error("what arrived is not what was sent")
	}
}

func TestServerAway(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err := tryDial(t, p); err == nil {
		ended(t, deadline(t, c), errReset)
	} else if !errors.Is(err, errReset) { // the reset may win against the end of the dial
		t.Fatal(err)
	}
	wait(t, p, "the server was found away", func(s chaos.Stats) bool { return s.DialErrors == 1 })
	if s := p.Stats(); s.Open != 0 {
		t.Errorf("counters are %+v", s)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	u := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, err := chaos.NewProxy(ctx, u.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client, server := pair(t, p, u)
	p.Hold(chaos.Both)
	cancel()
	ended(t, client, errReset)
	ended(t, server, errReset)
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	p.Heal()
	if _, err := tryDial(t, p); !errors.Is(err, errRefused) {
		t.Errorf("got %v, want %v", err, errRefused)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := p.Wait(ctx, func(chaos.Stats) bool { return false }); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}

// TestEverythingAtOnce is for the race detector: random faults during random traffic. Whatever
// happened, a healed proxy relays, and its counters balance.
func TestEverythingAtOnce(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	anyWay := func() chaos.Direction { return chaos.Direction(1 + rand.N(3)) }
	deeds := []func(){
		func() { p.Delay(anyWay(), time.Millisecond, time.Millisecond) },
		func() { p.Hold(anyWay()) }, func() { p.Release(anyWay()) }, func() { p.Cut(anyWay()) },
		p.BlackHole, p.Refuse, p.Reset, p.DropClientHalf, p.DropServerHalf,
		func() { p.ResetSenders(anyWay()) },
		func() { p.LoseReply(nil) }, func() { p.CloseAfterRequest(nil) },
		p.Heal, p.Heal, p.Heal,
	}
	var traffic, mischief, echoes sync.WaitGroup
	stop := make(chan struct{})
	echoes.Go(func() {
		for {
			select {
			case c := <-u.conns:
				echoes.Go(func() { _, _ = io.Copy(c, c); _ = c.Close() })
			case <-stop:
				return
			}
		}
	})
	for range 4 {
		traffic.Go(func() {
			for range 200 {
				c, err := tryDial(t, p)
				if err != nil {
					continue
				}
				_ = c.SetDeadline(time.Now().Add(5 * time.Millisecond))
				_, _ = c.Write(make([]byte, 64))
				_, _ = io.ReadFull(c, make([]byte, 64))
				_ = c.Close()
			}
		})
		mischief.Go(func() {
			for range 500 {
				deeds[rand.N(len(deeds))]()
			}
		})
	}
	traffic.Wait()
	mischief.Wait()
	p.Reset()
	p.Heal()
	c := deadline(t, dial(t, p))
	pass(t, c, c, "echo")
	_ = c.Close()
	wait(t, p, "all is over", func(s chaos.Stats) bool {
		return s.Open == 0 && s.Requests.Kept == 0 && s.Replies.Kept == 0
	})
	close(stop)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	echoes.Wait()
}
