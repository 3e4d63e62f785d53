package chaos_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/chaos"
)

func TestCutDropsOneWayAndHealResetsWhatLost(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	idle, idleServer := pair(t, p, u)
	p.Cut(chaos.Replies)
	pass(t, client, server, "requests flow")
	send(t, server, "lost")
	wait(t, p, "the reply is dropped", func(s chaos.Stats) bool { return s.Replies.Dropped == 4 })
	silent(t, client)
	late := dial(t, p)
	lateServer := u.accepted(t)
	pass(t, late, lateServer, "new connections are made")
	send(t, lateServer, "lost too")
	wait(t, p, "the reply is dropped", func(s chaos.Stats) bool { return s.Replies.Dropped == 12 })
	p.Heal()
	ended(t, client, errReset)
	ended(t, late, errReset)
	ended(t, server, errReset)
	pass(t, idle, idleServer, "what lost nothing lives on")
	pair(t, p, u)
}

func TestCutHidesTheEnd(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	p.Cut(chaos.Requests)
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	silent(t, server)
	p.Heal()
	ended(t, server, errReset)
}

func TestBlackHoleTakesOldAndNewConnections(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	idle, idleServer := pair(t, p, u)
	p.BlackHole()
	send(t, client, "in")
	send(t, server, "out")
	late := dial(t, p)
	send(t, late, "new")
	wait(t, p, "all is dropped", func(s chaos.Stats) bool { return s.Requests.Dropped == 5 && s.Replies.Dropped == 3 })
	silent(t, client)
	silent(t, server)
	silent(t, late)
	left := dial(t, p)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	wait(t, p, "the client that left is gone", func(s chaos.Stats) bool { return s.Accepted == 4 && s.Open == 3 })
	p.Heal()
	ended(t, client, errReset)
	ended(t, server, errReset)
	ended(t, late, errReset)
	pass(t, idle, idleServer, "what lost nothing lives on")
	if n := len(u.conns); n != 0 {
		t.Errorf("the server saw %d connections from the black hole", n)
	}
}

func TestCutWinsOverHold(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, _ := pair(t, p, u)
	p.Hold(chaos.Requests)
	send(t, client, "kept")
	wait(t, p, "the request is kept", func(s chaos.Stats) bool { return s.Requests.Kept == 4 })
	p.BlackHole()
	wait(t, p, "the request is dropped", func(s chaos.Stats) bool { return s.Requests.Dropped == 4 && s.Requests.Kept == 0 })
}

func TestResetSenders(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	p.ResetSenders(chaos.Requests)
	pass(t, server, client, "replies flow")
	send(t, client, "4")
	ended(t, server, errReset)
	ended(t, client, errReset)
	late := dial(t, p)
	lateServer := u.accepted(t)
	p.Heal()
	pass(t, late, lateServer, "a new one that sent nothing meanwhile")
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	for range 3 {
		p.Refuse()
		if c, err := tryDial(t, p); !errors.Is(err, errRefused) {
			if err == nil {
				_ = c.Close()
			}
			t.Fatalf("got %v, want %v", err, errRefused)
		}
		pass(t, client, server, "open connections stay")
		p.Heal()
		pair(t, p, u)
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	p.Hold(chaos.Requests)
	send(t, client, "kept")
	wait(t, p, "the request is kept", func(s chaos.Stats) bool { return s.Requests.Kept == 4 })
	p.Reset()
	ended(t, client, errReset)
	ended(t, server, errReset)
	if s := p.Stats(); s.Open != 0 || s.Requests.Kept != 0 || s.Requests.Dropped != 4 {
		t.Errorf("counters are %+v", s)
	}
	p.Heal()
	pair(t, p, u)
}

func TestDropServerHalf(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	p.DropServerHalf()
	ended(t, server, errReset)
	send(t, client, "anybody?")
	wait(t, p, "the request is dropped", func(s chaos.Stats) bool { return s.Requests.Dropped == 8 })
	silent(t, client)
	pair(t, p, u)
	p.Heal()
	ended(t, client, errReset)
}

func TestDropClientHalf(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	p.DropClientHalf()
	ended(t, client, errReset)
	send(t, server, "anybody?")
	wait(t, p, "the reply is dropped", func(s chaos.Stats) bool { return s.Replies.Dropped == 8 })
	silent(t, server)
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	wait(t, p, "no connection remains", func(s chaos.Stats) bool { return s.Open == 0 })
	client, server = pair(t, p, u)
	p.DropClientHalf()
	p.DropServerHalf()
	ended(t, client, errReset)
	ended(t, server, errReset)
	if s := p.Stats(); s.Open != 0 {
		t.Errorf("counters are %+v", s)
	}
}

func TestLoseReply(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	lost := p.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte("SET")) })
	pass(t, client, server, "GET")
	pass(t, server, client, "value")
	pass(t, client, server, "SET")
	silent(t, client)
	select {
	case <-lost:
		t.Fatal("told of a reply that the server has not sent")
	default:
	}
	send(t, server, "OK")
	select {
	case <-lost:
	case <-time.After(patience):
		t.Fatal("not told that the reply was lost")
	}
	silent(t, client)
	pass(t, client, server, "requests still arrive")
	other, otherServer := pair(t, p, u)
	pass(t, other, otherServer, "SET")
	pass(t, otherServer, other, "it works once")
	p.Reset()
	ended(t, client, errReset)
}

func TestHealTakesTrapsAway(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	p.LoseReply(nil)
	p.CloseAfterRequest(nil)
	p.Heal()
	pass(t, client, server, "request")
	pass(t, server, client, "reply")
}

func TestCloseAfterRequest(t *testing.T) {
	t.Parallel()
	p, u := start(t)
	client, server := pair(t, p, u)
	sent := p.CloseAfterRequest(func(piece []byte) bool { return string(piece) == "SET" })
	pass(t, client, server, "GET")
	pass(t, server, client, "value")
	send(t, client, "SET")
	select {
	case <-sent:
	case <-time.After(patience):
		t.Fatal("not told that the request was sent on")
	}
	ended(t, client, errReset)
	expect(t, server, "SET")
	ended(t, server, io.EOF)
	send(t, server, "OK")
	wait(t, p, "the reply is dropped", func(s chaos.Stats) bool { return s.Replies.Dropped == 2 })
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	wait(t, p, "the connection has ended", func(s chaos.Stats) bool { return s.Open == 0 })
}
