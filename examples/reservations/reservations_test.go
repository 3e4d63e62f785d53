package main_test

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	reservations "github.com/holdfast-io/holdfast/examples/reservations"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestOneBroker: of forty brokers at three instances one has the property, and all the others
// are told who.
func TestOneBroker(t *testing.T) {
	t.Parallel()
	redis := redisURL(testserver.Redis(t))
	var urls []string
	for range 3 {
		url, _ := instance(t, redis, holdfast.Config{})
		urls = append(urls, url)
	}
	var answers [40]answer
	testserver.Together(len(answers), func(i int) { answers[i] = reserve(t, urls[i%3], "corretor-"+strconv.Itoa(i), "apto-12") })
	winner := list(t, urls[0], "").List[0].Broker
	for i, a := range answers {
		if broker := "corretor-" + strconv.Itoa(i); broker == winner {
			a.Expect(t, http.StatusOK, "")
		} else {
			a.Expect(t, http.StatusConflict, "reserved")
		}
		if a.Body.Broker != winner || a.Body.Property != "apto-12" || a.Body.Until.IsZero() {
			t.Errorf("%s has it, and one of them is told %s", winner, a.Text)
		}
	}
}

// TestLife goes through a reservation, at two instances in turns.
func TestLife(t *testing.T) {
	t.Parallel()
	redis := redisURL(testserver.Redis(t))
	here, _ := instance(t, redis, holdfast.Config{})
	there, _ := instance(t, redis, holdfast.Config{})
	release(t, here, "ana", "casa 7", 0).Expect(t, http.StatusNotFound, "not-reserved")
	begun := time.Now()
	mine := reserve(t, here, "ana", "casa 7").Expect(t, http.StatusOK, "")
	if least := begun.Add(twoHours - time.Second); mine.Body.Renewed || mine.Body.Until.Before(least) || mine.Body.Until.After(time.Now().Add(twoHours)) {
		t.Errorf("two hours from %s on: %s", begun, mine.Text)
	}
	if taken := reserve(t, there, "bia", "casa 7").Expect(t, http.StatusConflict, "reserved").Body; taken.Broker != "ana" ||
		taken.Until.Sub(mine.Body.Until).Abs() > 10*time.Second { // the machine may be busy
		t.Errorf("reserved until %s, and others are told %v", mine.Body.Until, taken)
	}
	reserve(t, there, "bia", "casa 8").Expect(t, http.StatusOK, "")
	if again := reserve(t, there, "ana", "casa 7").Expect(t, http.StatusOK, ""); !again.Body.Renewed || again.Body.Number != mine.Body.Number || again.Body.Until.Before(mine.Body.Until) {
		t.Errorf("reserved again: %s, and before: %s", again.Text, mine.Text)
	}
	release(t, here, "bia", "casa 7", 0).Expect(t, http.StatusConflict, "reserved")
	first := list(t, there, "?limite=1")
	if len(first.List) != 1 || first.List[0].Property != "casa 7" || first.List[0].Number != mine.Body.Number || first.List[0].Since.IsZero() || first.Next != "casa 7" {
		t.Errorf("the first page is %+v", first)
	}
	if second := list(t, there, "?limite=1&depois=casa+7"); len(second.List) != 1 || second.List[0].Broker != "bia" || second.Next != "" {
		t.Errorf("the second page is %+v", second)
	}
	release(t, there, "ana", "casa 7", 0).Expect(t, http.StatusNoContent, "")
	if next := reserve(t, here, "bia", "casa 7").Expect(t, http.StatusOK, ""); next.Body.Number <= mine.Body.Number {
		t.Errorf("number %d comes after %d", next.Body.Number, mine.Body.Number)
	}
	for _, bad := range []string{"", "apto\n12", strings.Repeat("a", 201)} {
		reserve(t, here, "ana", bad).Expect(t, http.StatusBadRequest, "invalid")
	}
}

// TestRestart: reservations outlive the service that is killed, and the next one continues with them.
func TestRestart(t *testing.T) {
	t.Parallel()
	redis := redisURL(testserver.Redis(t))
	first, url := testserver.Service(t, "--backend", redis)
	mine := reserve(t, url, "ana", "apto-12").Expect(t, http.StatusOK, "")
	first.Kill()
	second, url := testserver.Service(t, "--backend", redis)
	reserve(t, url, "bia", "apto-12").Expect(t, http.StatusConflict, "reserved")
	if again := reserve(t, url, "ana", "apto-12").Expect(t, http.StatusOK, ""); !again.Body.Renewed || again.Body.Number != mine.Body.Number {
		t.Errorf("after a restart: %s", again.Text)
	}
	second.Terminate()
	if err := second.Wait(time.Minute); err != nil {
		t.Errorf("told to stop, it ended with %v: %s", err, second.Log())
	}
	http.DefaultClient.CloseIdleConnections()
}

// store is a store with other capabilities.
type store struct {
	backend.Backend

	can backend.Capabilities
}

func (s store) Capabilities() backend.Capabilities { return s.can }

// TestRefusedAtStart: a store that cannot keep a reservation for two hours is refused, with the bound or the reason.
func TestRefusedAtStart(t *testing.T) {
	t.Parallel()
	b := memlock.New()
	defer b.Close()
	open := func(can backend.Capabilities) error {
		locks, err := holdfast.New(store{b, can}, holdfast.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close(t.Context())
		_, err = reservations.NewBook(locks, twoHours)
		return err
	}
	short, untimed := b.Capabilities(), b.Capabilities()
	short.MaxTTL, untimed.Timed = 30*time.Second, false
	var bad *holdfast.InvalidError
	if err := open(short); !errors.As(err, &bad) || !strings.Contains(bad.Bound, "30s") {
		t.Errorf("30 seconds at most: %v", err)
	}
	if err := open(untimed); !errors.Is(err, holdfast.ErrUnsupported) {
		t.Errorf("leases that end with their process: %v", err)
	}
}
