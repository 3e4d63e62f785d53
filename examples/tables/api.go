package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/examples/internal/web"
	"github.com/holdfast-io/holdfast/rowlock"
)

// timeFormat is a time on the restaurant's clock: it has no zone.
const timeFormat = "2006-01-02T15:04:05"

// Time is a time of the restaurant, in JSON "2026-12-24T20:00:00" or "2026-12-24T20:00".
type Time struct{ time.Time }

// MarshalJSON writes it to the second.
func (t Time) MarshalJSON() ([]byte, error) { //nolint:unparam // json.Marshaler has it so
	return []byte(t.Format(`"` + timeFormat + `"`)), nil
}

// UnmarshalJSON reads it.
func (t *Time) UnmarshalJSON(text []byte) error {
	s := strings.Trim(string(text), `"`)
	at, err := time.Parse(timeFormat, s)
	if err != nil {
		at, err = time.Parse(timeFormat[:len("2006-01-02T15:04")], s)
	}
	if err != nil || at.Year() < 2000 || at.Year() > 2999 || at.Nanosecond() != 0 {
		return fmt.Errorf("%.40q is not a time like %q of the years 2000 to 2999", s, timeFormat)
	}
	t.Time = at
	return nil
}

// NewAPI serves the bar over HTTP.
func NewAPI(bar *Bar, log *slog.Logger) http.Handler {
	return web.New(log, map[string]web.Handler{
		"POST /mesas/{id}/reservas":          func(w http.ResponseWriter, r *http.Request) error { return reserve(bar, w, r) },
		"GET /mesas/{id}/reservas/{reserva}": func(w http.ResponseWriter, r *http.Request) error { return reservation(bar, w, r) },
		"GET /mesas/{id}/reservas":           func(w http.ResponseWriter, r *http.Request) error { return reservations(bar, w, r) },
		"GET /mesas/{id}":                    func(w http.ResponseWriter, r *http.Request) error { return table(bar, w, r) },
		"GET /mesas":                         func(w http.ResponseWriter, r *http.Request) error { return allTables(bar, w, r) },
	}, explain, web.Portuguese{First: true, Texts: map[string]web.Text{
		"not-found":     {Title: "Não encontrado", Detail: "não existe essa mesa, ou essa reserva da mesa"},
		"unknown-guest": {Title: "Usuário desconhecido", Detail: "não existe esse usuário"},
		"past":          {Title: "O horário já passou", Detail: "esse horário já passou"},
		"taken":         {Title: "A mesa não está livre nesse horário", Detail: "a mesa está reservada nesse horário"},
		"busy":          {Title: "Muitos querem esta mesa", Detail: "outros a estão reservando agora; nada foi gravado, tente de novo"},
	}})
}

func reserve(bar *Bar, w http.ResponseWriter, r *http.Request) error {
	id, err := web.ID(r, "id")
	if err != nil {
		return err
	}
	var body struct {
		Guest int64 `json:"usuarioId"`
		From  Time  `json:"dataReserva"`
	}
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	switch {
	case body.Guest < 1:
		return web.Invalid("usuarioId", "must be a whole number above 0")
	case body.From.IsZero():
		return web.Invalid("dataReserva", "must be given")
	}
	made, err := bar.Reserve(r.Context(), id, body.Guest, body.From.Time)
	if err != nil {
		return err
	}
	w.Header().Set("Location", fmt.Sprintf("/mesas/%d/reservas/%d", made.Table, made.ID))
	return web.JSON(w, http.StatusCreated, made)
}

func reservation(bar *Bar, w http.ResponseWriter, r *http.Request) error {
	id, err := web.ID(r, "id")
	if err != nil {
		return err
	}
	number, err := web.ID(r, "reserva")
	if err != nil {
		return err
	}
	made, err := bar.Reservation(r.Context(), id, number)
	if err != nil {
		return err
	}
	return web.JSON(w, http.StatusOK, made)
}

func table(bar *Bar, w http.ResponseWriter, r *http.Request) error {
	id, err := web.ID(r, "id")
	if err != nil {
		return err
	}
	t, err := bar.Table(r.Context(), id)
	if err != nil {
		return err
	}
	return web.JSON(w, http.StatusOK, t)
}

// allTables lists the tables: those with an ID above depois.
func allTables(bar *Bar, w http.ResponseWriter, r *http.Request) error {
	var after int64
	if s := r.URL.Query().Get("depois"); s != "" {
		var err error
		if after, err = strconv.ParseInt(s, 10, 64); err != nil || after < 1 {
			return web.Invalid("depois", "must be a whole number above 0")
		}
	}
	all, err := bar.Tables(r.Context(), after)
	if err != nil {
		return err
	}
	return web.JSON(w, http.StatusOK, map[string][]Table{"mesas": all})
}

// reservations lists the reservations of a table: those that end after the time depois, which is now by default.
func reservations(bar *Bar, w http.ResponseWriter, r *http.Request) error {
	id, err := web.ID(r, "id")
	if err != nil {
		return err
	}
	after := Time{bar.now()}
	if s := r.URL.Query().Get("depois"); s != "" {
		if err := after.UnmarshalJSON([]byte(s)); err != nil {
			return web.Invalid("depois", err.Error())
		}
	}
	all, err := bar.Reservations(r.Context(), id, after.Time)
	if err != nil {
		return err
	}
	return web.JSON(w, http.StatusOK, map[string][]Reservation{"reservas": all})
}

// explain returns the problem that is sent for an error; an unknown error is 503.
func explain(err error) *web.ProblemError {
	switch {
	case errors.Is(err, ErrNoTable), errors.Is(err, ErrNoReservation):
		return &web.ProblemError{Status: http.StatusNotFound, Type: "not-found", Title: "Not found", Detail: err.Error()}
	case errors.Is(err, ErrNoGuest):
		return &web.ProblemError{Status: http.StatusUnprocessableEntity, Type: "unknown-guest", Title: "Guest is not known", Detail: err.Error()}
	case errors.Is(err, ErrPast):
		return &web.ProblemError{Status: http.StatusUnprocessableEntity, Type: "past", Title: "The time has passed", Detail: err.Error()}
	case errors.Is(err, ErrTaken):
		return &web.ProblemError{Status: http.StatusUnprocessableEntity, Type: "taken", Title: "Table is not free then", Detail: err.Error()}
	case errors.Is(err, rowlock.ErrBusy), rowlock.Again(err):
		return &web.ProblemError{
			Status: http.StatusServiceUnavailable, Type: "busy", Title: "Too many want this table", RetryAfter: time.Second,
			Detail: "others are reserving it at this moment; nothing was written, try again",
		}
	default:
		return nil
	}
}
