package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/examples/internal/web"
	"github.com/holdfast-io/holdfast/fence"
)

const (
	maxID   = 200 // bytes of an idUsuario or idImovel
	maxPage = 500
)

// command is the body of both calls.
type command struct {
	Broker   string `json:"idUsuario"`
	Property string `json:"idImovel"`
	// Number is for a release: which reservation is meant.
	Number fence.Token `json:"numero"`
}

// NewAPI serves the book over HTTP.
func NewAPI(book *Book, log *slog.Logger) http.Handler {
	return web.New(log, map[string]web.Handler{
		"POST /lock":    func(w http.ResponseWriter, r *http.Request) error { return lock(book, w, r) },
		"POST /release": func(w http.ResponseWriter, r *http.Request) error { return release(book, w, r) },
		"GET /reservas": func(w http.ResponseWriter, r *http.Request) error { return list(book, w, r) },
	}, explain, web.Portuguese{First: true, Texts: map[string]web.Text{
		"reserved":     {Title: "Imóvel reservado", Detail: "outro corretor reservou o imóvel: idUsuario diz quem, ate diz até quando"},
		"unsettled":    {Title: "Um pedido anterior ainda não terminou", Detail: "um pedido anterior deste corretor está sendo concluído; tente de novo"},
		"not-reserved": {Title: "O imóvel não está reservado", Detail: "nenhum corretor o reservou: não há o que liberar"},
		"other-number": {Title: "Outra reserva está em vigor", Detail: "a reserva com esse número terminou; o corretor reservou o imóvel de novo depois dela"},
	}})
}

func lock(book *Book, w http.ResponseWriter, r *http.Request) error {
	c, err := read(w, r)
	if err != nil {
		return err
	}
	if c.Number != 0 {
		return web.Invalid("numero", "is for a release only")
	}
	// A broker that hangs up has still sent the request: half a reservation would help no one.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), web.RequestTime)
	defer cancel()
	reserved, renewed, err := book.Reserve(ctx, c.Property, c.Broker)
	if err != nil {
		return err
	}
	return web.JSON(w, http.StatusOK, struct {
		Reservation
		Renewed bool `json:"renovada"`
	}{reserved, renewed})
}

func release(book *Book, w http.ResponseWriter, r *http.Request) error {
	c, err := read(w, r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), web.RequestTime)
	defer cancel()
	if err := book.Release(ctx, c.Property, c.Broker, c.Number); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func list(book *Book, w http.ResponseWriter, r *http.Request) error {
	query, limit := r.URL.Query(), maxPage
	if s := query.Get("limite"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > maxPage {
			return web.Invalid("limite", "must be 1 to "+strconv.Itoa(maxPage))
		}
		limit = n
	}
	after := query.Get("depois")
	if after != "" {
		if err := check("depois", after); err != nil {
			return err
		}
	}
	page, next, err := book.List(r.Context(), after, limit)
	if err != nil {
		return err
	}
	return web.JSON(w, http.StatusOK, struct {
		Page []Reservation `json:"reservas"`
		Next string        `json:"proximo"`
	}{page, next})
}

func read(w http.ResponseWriter, r *http.Request) (command, error) {
	var c command
	if err := web.Decode(w, r, &c); err != nil {
		return c, err
	}
	if err := check("idUsuario", c.Broker); err != nil {
		return c, err
	}
	return c, check("idImovel", c.Property)
}

// check keeps the texts that become a name and an owner within what people can read.
func check(field, id string) error {
	switch {
	case id == "":
		return web.Invalid(field, "must be given")
	case len(id) > maxID:
		return web.Invalid(field, "must be at most "+strconv.Itoa(maxID)+" bytes")
	case !utf8.ValidString(id):
		return web.Invalid(field, "must be UTF-8")
	}
	for _, c := range id {
		if !unicode.IsPrint(c) || c == utf8.RuneError {
			return web.Invalid(field, "must be printable")
		}
	}
	return nil
}

// explain returns the problem that is sent for an error; an unknown error is 503.
func explain(err error) *web.ProblemError {
	if taken, ok := errors.AsType[*TakenError](err); ok {
		return &web.ProblemError{
			Status: http.StatusConflict, Type: "reserved", Title: "Property is reserved", Detail: taken.Error(),
			With: map[string]any{"idImovel": taken.Property, "idUsuario": taken.Broker, "ate": taken.Until},
		}
	}
	if unsettled, ok := errors.AsType[*UnsettledError](err); ok {
		return &web.ProblemError{
			Status: http.StatusServiceUnavailable, Type: "unsettled", Title: "An earlier request is being settled", Detail: unsettled.Error(),
			RetryAfter: max(unsettled.Left, time.Second),
		}
	}
	if away, ok := errors.AsType[*holdfast.UnavailableError](err); ok && away.RetryAfter > 0 { // such as a Redis that may have lost data
		return &web.ProblemError{
			Status: http.StatusServiceUnavailable, Type: "unavailable", Title: "The store refuses for now", Detail: away.Error(),
			RetryAfter: away.RetryAfter,
		}
	}
	switch {
	case errors.Is(err, ErrNotReserved):
		return &web.ProblemError{Status: http.StatusNotFound, Type: "not-reserved", Title: "Property is not reserved", Detail: "no broker has reserved it, so there is nothing to release"}
	case errors.Is(err, ErrNumber):
		return &web.ProblemError{Status: http.StatusConflict, Type: "other-number", Title: "Another reservation is in force", Detail: "the reservation with that number has ended; the broker has reserved the property again since"}
	default:
		return nil
	}
}
