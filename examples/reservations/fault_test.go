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
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestWithoutLock: a service that reads whether a property is free, and then writes that it is
// not, gives it to two. TestOneBroker is the same with the lock.
func TestWithoutLock(t *testing.T) {
	t.Parallel()
	redis := testserver.Redis(t)
	var asked, wg sync.WaitGroup
	asked.Add(2)
	told := make([]bool, 2)
	for i := range told {
		wg.Go(func() {
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
	}
	wg.Wait()
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
	url, _ := instance(t, redisURL(redis), twoHours, holdfast.Config{})
	first := expect(t, reserve(t, url, "ana", "apto-12"), http.StatusOK)
	if again := expect(t, reserve(t, url, "ana", "apto-12"), http.StatusOK); !again.Renewed || again.Number != first.Number {
		t.Errorf("the repeated reservation: %s", again.text)
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

	url, locks := instance(t, redisURL(redis), twoHours, holdfast.Config{})
	first := expect(t, reserve(t, url, "ana", "apto-12"), http.StatusOK)
	if _, err := locks.Break(t.Context(), "reserva:apto-12", "its two hours have elapsed"); err != nil {
		t.Fatal(err)
	}
	second := expect(t, reserve(t, url, "ana", "apto-12"), http.StatusOK)
	late := `{"idUsuario":"ana","idImovel":"apto-12","numero":` + strconv.FormatUint(first.Number, 10) + `}`
	if a := expect(t, do(t, http.MethodPost, url+"/release", late), http.StatusConflict); a.Type != "urn:holdfast:example:other-number" {
		t.Errorf("a late release: %s", a.text)
	}
	expect(t, reserve(t, url, "bia", "apto-12"), http.StatusConflict)
	now := `{"idUsuario":"ana","idImovel":"apto-12","numero":` + strconv.FormatUint(second.Number, 10) + `}`
	expect(t, do(t, http.MethodPost, url+"/release", now), http.StatusNoContent)
}

// TestDoubleClick: two concurrent requests of one broker, at two instances, are one
// reservation.
func TestDoubleClick(t *testing.T) {
	t.Parallel()
	redis := redisURL(testserver.Redis(t))
	here, _ := instance(t, redis, twoHours, holdfast.Config{})
	there, _ := instance(t, redis, twoHours, holdfast.Config{})
	for round := range 20 {
		property := "apto-" + strconv.Itoa(round)
		both := each(2, func(i int) answer { return reserve(t, []string{here, there}[i], "ana", property) })
		if both[0].status != 200 || both[1].status != 200 || both[0].Number != both[1].Number || both[0].Renewed == both[1].Renewed {
			t.Fatalf("two concurrent reservations: %d %s and %d %s", both[0].status, both[0].text, both[1].status, both[1].text)
		}
	}
}

// TestLostAnswer: the store has granted, and the answer does not arrive. The instance gives up,
// tells the broker that the outcome is unknown, and releases the lease in the background, which
// takes time as well. During that time the broker asks another instance: its answer has to stay
// true.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	redis := testserver.Redis(t)
	proxy := chaos.Start(t, redis.Addr())
	here, locks := instance(t, "redis://"+proxy.Addr()+"?quarantine=off", twoHours, holdfast.Config{Timeout: 6 * time.Second})
	there, _ := instance(t, redisURL(redis), twoHours, holdfast.Config{})
	expect(t, reserve(t, here, "ana", "apto-11"), http.StatusOK) // it is connected

	proxy.Hold(chaos.Replies)
	first := make(chan answer, 1)
	go func() { first <- reserve(t, here, "ana", "apto-12") }()
	for granted := false; !granted && len(first) == 0; {
		granted = len(do(t, http.MethodGet, there+"/reservas", "").List) == 2
	}
	proxy.Hold(chaos.Both)
	if a := expect(t, <-first, http.StatusServiceUnavailable); a.header.Get("Retry-After") == "" {
		t.Errorf("the store does not answer: %s", a.text)
	}

	said := reserve(t, there, "ana", "apto-12")
	proxy.Heal()
	for said.status != http.StatusOK { // an earlier request is being settled
		expect(t, said, http.StatusServiceUnavailable)
		said = reserve(t, there, "ana", "apto-12")
	}
	done, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := locks.Close(done); err != nil { // it waits for what is done in the background
		t.Fatal(err)
	}
	if a := expect(t, reserve(t, there, "bia", "apto-12"), http.StatusConflict); a.Broker != "ana" {
		t.Errorf("ana was told %s, and bia %s", said.text, a.text)
	}
	if again := expect(t, reserve(t, there, "ana", "apto-12"), http.StatusOK); again.Number != said.Number {
		t.Errorf("ana was told %s, and then %s", said.text, again.text)
	}
}

// TestStoreRefuses: a Redis that may have forgotten reservations grants none for a while,
// and the service says for how long.
func TestStoreRefuses(t *testing.T) {
	t.Parallel()
	url, _ := instance(t, "redis://"+testserver.Redis(t).Addr()+"?quarantine=10m", twoHours, holdfast.Config{Timeout: 4 * time.Second})
	a := expect(t, reserve(t, url, "ana", "apto-12"), http.StatusServiceUnavailable)
	if wait, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || wait < 60 {
		t.Errorf("for ten minutes nothing is granted: Retry-After %q, %s", a.header.Get("Retry-After"), a.text)
	}
}
