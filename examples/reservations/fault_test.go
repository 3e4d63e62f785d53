package main_test

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestWithoutLock: a service that reads whether a property is free, and then writes that it is
// not, gives it to two. TestOneBroker is the same with the lock.
func TestWithoutLock(t *testing.T) {
	t.Parallel()
	redis := testserver.Redis(t)
	var asked sync.WaitGroup
	asked.Add(2)
	var told [2]bool
	testserver.Together(2, func(i int) {
		taken, err := redis.DoContext(t.Context(), "GET", "apto-12")
		asked.Done()
		asked.Wait() // the other has read too
		if err == nil && taken == nil {
			_, err = redis.DoContext(t.Context(), "SET", "apto-12", "corretor-"+strconv.Itoa(i))
			told[i] = err == nil
		}
		if err != nil {
			t.Error(err)
		}
	})
	if !told[0] || !told[1] {
		t.Errorf("brokers were told %v: without a lock both have it", told)
	}
}

// document is the LockService of the document, on a real Redis: the broker is the value of
// the key.
type document struct{ redis *testserver.RedisServer }

func (d document) acquire(property, broker string) bool {
	return d.redis.Do("SET", "LOCK-RESERVA::"+property, broker, "NX", "PX", "7200000") != nil
}

func (d document) release(property, broker string) bool {
	const script = `if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end`
	return d.redis.Do("EVAL", script, "1", "LOCK-RESERVA::"+property, broker) == int64(1)
}

// TestAskedTwice: a broker whose answer got lost asks again. In the document that is
// "Recurso bloqueado", for two hours; nor can a reservation be kept alive. Here it is a
// renewal.
func TestAskedTwice(t *testing.T) {
	t.Parallel()
	redis := testserver.Redis(t)
	theirs := document{redis}
	if !theirs.acquire("apto-12", "ana") || theirs.acquire("apto-12", "ana") {
		t.Error("the owner can acquire the document's lock twice: this test is out of date")
	}
	url, _ := instance(t, redisURL(redis), holdfast.Config{})
	first := reserve(t, url, "ana", "apto-12").Expect(t, http.StatusOK, "")
	if again := reserve(t, url, "ana", "apto-12").Expect(t, http.StatusOK, ""); !again.Body.Renewed || again.Body.Number != first.Body.Number {
		t.Errorf("the repeated reservation: %s", again.Text)
	}
}

// TestLateRelease: a release that was long on its way arrives when its broker has reserved once
// more. The document's release compares the broker, which is the same, and frees the new
// reservation. Here the request may say which one it means.
func TestLateRelease(t *testing.T) {
	t.Parallel()
	redis := testserver.Redis(t)
	theirs := document{redis}
	theirs.acquire("apto-12", "ana")
	redis.Do("DEL", "LOCK-RESERVA::apto-12") // its two hours have passed
	theirs.acquire("apto-12", "ana")
	if !theirs.release("apto-12", "ana") || !theirs.acquire("apto-12", "bia") {
		t.Error("the document's late release does no harm: this test is out of date")
	}

	url, locks := instance(t, redisURL(redis), holdfast.Config{})
	first := reserve(t, url, "ana", "apto-12").Expect(t, http.StatusOK, "")
	if _, err := locks.Break(t.Context(), "reserva:apto-12", "its two hours have elapsed"); err != nil {
		t.Fatal(err)
	}
	second := reserve(t, url, "ana", "apto-12").Expect(t, http.StatusOK, "")
	release(t, url, "ana", "apto-12", first.Body.Number).Expect(t, http.StatusConflict, "other-number")
	reserve(t, url, "bia", "apto-12").Expect(t, http.StatusConflict, "reserved")
	release(t, url, "ana", "apto-12", second.Body.Number).Expect(t, http.StatusNoContent, "")
}

// TestDoubleClick: two concurrent requests of one broker, at two instances, are one
// reservation.
func TestDoubleClick(t *testing.T) {
	t.Parallel()
	redis := redisURL(testserver.Redis(t))
	here, _ := instance(t, redis, holdfast.Config{})
	there, _ := instance(t, redis, holdfast.Config{})
	for round := range 20 {
		property := "apto-" + strconv.Itoa(round)
		var both [2]answer
		testserver.Together(2, func(i int) { both[i] = reserve(t, []string{here, there}[i], "ana", property) })
		a, b := both[0].Expect(t, http.StatusOK, ""), both[1].Expect(t, http.StatusOK, "")
		if a.Body.Number != b.Body.Number || a.Body.Renewed == b.Body.Renewed {
			t.Fatalf("two concurrent reservations: %s and %s", a.Text, b.Text)
		}
	}
}

// TestLostAnswer: the store has granted, and the answer does not arrive. The instance gives up,
// tells the broker that the outcome is unknown, and releases the lease in the background, which
// takes time as well. During that time the broker asks another instance: its answer has to stay
// true.
func TestLostAnswer(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	redis := testserver.Redis(t)
	proxy := chaos.Start(t, redis.Addr())
	here, locks := instance(t, "redis://"+proxy.Addr()+"?quarantine=off", holdfast.Config{Timeout: 6 * time.Second})
	there, _ := instance(t, redisURL(redis), holdfast.Config{})
	reserve(t, here, "ana", "apto-11").Expect(t, http.StatusOK, "") // it is connected

	proxy.Hold(chaos.Replies)
	first := make(chan answer, 1)
	go func() { first <- reserve(t, here, "ana", "apto-12") }()
	for granted := false; !granted && len(first) == 0; {
		granted = len(list(t, there, "").List) == 2
	}
	proxy.Hold(chaos.Both)
	(<-first).Expect(t, http.StatusServiceUnavailable, "unavailable")

	said := reserve(t, there, "ana", "apto-12")
	proxy.Heal()
	for said.Status != http.StatusOK { // an earlier request is being settled
		if said.Status != http.StatusServiceUnavailable {
			t.Fatalf("ana is told %d %s", said.Status, said.Text)
		}
		said = reserve(t, there, "ana", "apto-12")
	}
	done, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := locks.Close(done); err != nil { // it waits for what is done in the background
		t.Fatal(err)
	}
	if a := reserve(t, there, "bia", "apto-12").Expect(t, http.StatusConflict, "reserved"); a.Body.Broker != "ana" {
		t.Errorf("ana was told %s, and bia %s", said.Text, a.Text)
	}
	if again := reserve(t, there, "ana", "apto-12").Expect(t, http.StatusOK, ""); again.Body.Number != said.Body.Number {
		t.Errorf("ana was told %s, and then %s", said.Text, again.Text)
	}
}

// TestStoreRefuses: a Redis that may have forgotten reservations grants none for a while,
// and the service says for how long.
func TestStoreRefuses(t *testing.T) {
	t.Parallel()
	url, _ := instance(t, "redis://"+testserver.Redis(t).Addr()+"?quarantine=10m", holdfast.Config{Timeout: 4 * time.Second})
	a := reserve(t, url, "ana", "apto-12").Expect(t, http.StatusServiceUnavailable, "unavailable")
	if wait, err := strconv.Atoi(a.Header.Get("Retry-After")); err != nil || wait < 60 {
		t.Errorf("for ten minutes nothing is granted: Retry-After %q, %s", a.Header.Get("Retry-After"), a.Text)
	}
}
