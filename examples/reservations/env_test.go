package main_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/examples/internal/web"
	reservations "github.com/holdfast-io/holdfast/examples/reservations"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) {
	if testserver.IsService() {
		os.Exit(web.Main("reservations", reservations.Run))
	}
	leaktest.Main(m)
}

// redisURL is the URL of a server that has lost nothing: it need not wait for leases that it
// may have forgotten.
func redisURL(s *testserver.RedisServer) string { return "redis://" + s.Addr() + "?quarantine=off" }

// instance is an instance of the service in this process, with a backend and a client of its own.
func instance(t *testing.T, url string, cfg holdfast.Config) (string, *holdfast.Client) {
	t.Helper()
	locks, end, err := web.Locks(t.Context(), url, cfg)
	if err != nil {
		t.Fatal(err)
	}
	book, err := reservations.NewBook(locks, twoHours)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(reservations.NewAPI(book, slog.New(slog.DiscardHandler)))
	t.Cleanup(func() {
		server.Close()
		_ = end()
		http.DefaultClient.CloseIdleConnections()
	})
	return server.URL, locks
}

type body struct {
	reservations.Reservation

	Renewed bool                       `json:"renovada"`
	Next    string                     `json:"proximo"`
	List    []reservations.Reservation `json:"reservas"`
}

type answer = testserver.Answer[body]

// reserve and release are the two calls of the document. number is the reservation that is meant; 0: any.
func reserve(t *testing.T, url, broker, property string) answer {
	t.Helper()
	return testserver.Do[body](t, http.MethodPost, url+"/lock", fmt.Sprintf(`{"idUsuario":%q,"idImovel":%q}`, broker, property))
}

func release(t *testing.T, url, broker, property string, number fence.Token) answer {
	t.Helper()
	return testserver.Do[body](t, http.MethodPost, url+"/release", fmt.Sprintf(`{"idUsuario":%q,"idImovel":%q,"numero":%d}`, broker, property, number))
}

func list(t *testing.T, url, query string) body {
	t.Helper()
	return testserver.Do[body](t, http.MethodGet, url+"/reservas"+query, "").Expect(t, http.StatusOK, "").Body
}

const twoHours = 2 * time.Hour
