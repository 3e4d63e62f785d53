package main

import (
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/examples/internal/web"
	"github.com/holdfast-io/holdfast/fence"
)

const (
	maxQuantity = 1_000_000
	maxRequest  = 64 // bytes of an Idempotency-Key
)

// NewAPI serves the shop over HTTP.
func NewAPI(shop *Shop, log *slog.Logger) http.Handler {
	return web.New(log, map[string]web.Handler{
		"POST /orders/{id}/process":    func(w http.ResponseWriter, r *http.Request) error { return process(shop, w, r) },
		"POST /inventory/{id}/reserve": func(w http.ResponseWriter, r *http.Request) error { return reserve(shop, w, r) },
		"GET /orders/{id}":             func(w http.ResponseWriter, r *http.Request) error { return order(shop, w, r) },
		"GET /inventory/{id}":          func(w http.ResponseWriter, r *http.Request) error { return stock(shop, w, r) },
	}, explain, web.Portuguese{Texts: map[string]web.Text{
		"insufficient-stock": {Title: "Estoque insuficiente", Detail: "não há o bastante em estoque; nada foi cobrado"},
		"busy":               {Title: "O pedido está sendo processado", Detail: "outra requisição trabalha neste pedido"},
		"stock-busy":         {Title: "O estoque está ocupado", Detail: "outros trabalham neste produto; nada foi gravado, tente de novo"},
		"already-processed":  {Title: "O pedido já foi processado", Detail: "o pedido já foi processado: order traz o resultado"},
		"other-request":      {Title: "A Idempotency-Key já foi usada", Detail: "a chave foi usada para outra quantidade"},
		"not-found":          {Title: "Não encontrado", Detail: "não existe esse pedido ou produto"},
		"another-epoch":      {Title: "Locks de outro armazenamento", Detail: "esta instância usa os locks de outro armazenamento, ou de outra época; nada foi gravado"},
		"lock-lost":          {Title: "O lock foi perdido", Detail: "outra requisição assumiu, ou pode ter assumido; tente de novo"},
	}})
}

func process(shop *Shop, w http.ResponseWriter, r *http.Request) error {
	id, err := web.ID(r, "id")
	if err != nil {
		return err
	}
	o, err := shop.Process(r.Context(), id)
	if err != nil {
		return err
	}
	if o.Status == StatusRejected {
		return &web.ProblemError{
			Status: http.StatusBadRequest, Type: "insufficient-stock", Title: "Insufficient stock",
			Detail: "the order was rejected, and nothing was charged", With: map[string]any{"order": o},
		}
	}
	return web.JSON(w, http.StatusOK, o)
}

func reserve(shop *Shop, w http.ResponseWriter, r *http.Request) error {
	product, err := web.ID(r, "id")
	if err != nil {
		return err
	}
	quantity, err := quantityOf(w, r)
	if err != nil {
		return err
	}
	request := r.Header.Get("Idempotency-Key")
	if len(request) > maxRequest || !utf8.ValidString(request) {
		return web.Invalid("Idempotency-Key", "must be UTF-8 of at most "+strconv.Itoa(maxRequest)+" bytes")
	}
	done, err := shop.Reserve(r.Context(), product, quantity, request)
	if err != nil {
		return err
	}
	return web.JSON(w, http.StatusOK, done)
}

// quantityOf reads the quantity from the body, or, as the document has it, from the query.
func quantityOf(w http.ResponseWriter, r *http.Request) (int, error) {
	var body struct {
		Quantity int `json:"quantity"`
	}
	if text := r.URL.Query().Get("quantity"); text != "" {
		body.Quantity, _ = strconv.Atoi(text) // 0 for what is no number
	} else if err := web.Decode(w, r, &body); err != nil {
		return 0, err
	}
	if body.Quantity < 1 || body.Quantity > maxQuantity {
		return 0, web.Invalid("quantity", "must be 1 to "+strconv.Itoa(maxQuantity))
	}
	return body.Quantity, nil
}

func order(shop *Shop, w http.ResponseWriter, r *http.Request) error {
	id, err := web.ID(r, "id")
	if err != nil {
		return err
	}
	o, err := shop.store.Order(r.Context(), id)
	if err != nil {
		return err
	}
	return web.JSON(w, http.StatusOK, o)
}

func stock(shop *Shop, w http.ResponseWriter, r *http.Request) error {
	product, err := web.ID(r, "id")
	if err != nil {
		return err
	}
	n, err := shop.store.Stock(r.Context(), product)
	if err != nil {
		return err
	}
	return web.JSON(w, http.StatusOK, map[string]int64{"product": product, "stock": int64(n)})
}

// explain returns the problem that is sent for an error; an unknown error is 503.
func explain(err error) *web.ProblemError {
	p := &web.ProblemError{Detail: err.Error()}
	processed, isProcessed := errors.AsType[*ProcessedError](err)
	few, isFew := errors.AsType[*StockError](err)
	switch {
	case errors.Is(err, ErrOrderBusy):
		p.Status, p.Type, p.Title, p.RetryAfter = http.StatusConflict, "busy", "Order is being processed", time.Second
		p.Detail = "another request works on this order"
	case errors.Is(err, ErrStockBusy):
		p.Status, p.Type, p.Title, p.RetryAfter = http.StatusServiceUnavailable, "stock-busy", "Could not get at the stock", time.Second
		p.Detail = "others work on this product; nothing was written, try again"
	case isProcessed:
		p.Status, p.Type, p.Title = http.StatusBadRequest, "already-processed", "Order already processed"
		p.With = map[string]any{"order": processed.Order}
	case isFew:
		p.Status, p.Type, p.Title = http.StatusBadRequest, "insufficient-stock", "Insufficient stock"
		p.With = map[string]any{"stock": few.Stock}
	case errors.Is(err, ErrRequest):
		p.Status, p.Type, p.Title = http.StatusUnprocessableEntity, "other-request", "Idempotency-Key was used before"
	case errors.Is(err, ErrNotFound):
		p.Status, p.Type, p.Title = http.StatusNotFound, "not-found", "Not found"
	case errors.Is(err, fence.ErrEpoch): // an operator has to give all instances the same store and epoch
		p.Status, p.Type, p.Title = http.StatusServiceUnavailable, "another-epoch", "Locks of another store"
	case errors.Is(err, fence.ErrStale), errors.Is(err, holdfast.ErrLost):
		p.Status, p.Type, p.Title, p.RetryAfter = http.StatusServiceUnavailable, "lock-lost", "The lock was lost", time.Second
		p.Detail = "another request has taken over, or may have; try again"
	default:
		return nil
	}
	return p
}
