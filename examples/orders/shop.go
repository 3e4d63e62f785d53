package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast"
)

// StockWait is how long a request waits in the queue for the stock of a product.
const StockWait = 5 * time.Second

var (
	// ErrOrderBusy: another request, at this or another instance, works on the order.
	ErrOrderBusy = errors.New("the order is being processed")
	// ErrStockBusy: the lock of the product's stock was not granted within StockWait.
	ErrStockBusy = errors.New("too many callers wait for the product")
)

// Authorize asks the payment provider whether an order can be charged. That sometimes takes
// seconds: the reason for a lock that needs no open transaction. ctx ends when the lock is
// lost. Work outside of the database may be repeated after that, so the provider is given the
// order's ID as its idempotency key.
type Authorize func(ctx context.Context, o Order) error

// Shop does the work that needs a lock. Its methods are safe for concurrent use.
type Shop struct {
	store     *Store
	locks     *holdfast.Client
	authorize Authorize
	log       *slog.Logger
}

// NewShop makes a shop. Without authorize every order can be charged.
func NewShop(store *Store, locks *holdfast.Client, authorize Authorize, log *slog.Logger) *Shop {
	if authorize == nil {
		authorize = func(context.Context, Order) error { return nil }
	}
	return &Shop{store: store, locks: locks, authorize: authorize, log: log}
}

func orderLock(id int64) string      { return "order:" + strconv.FormatInt(id, 10) }
func stockLock(product int64) string { return "inventory:" + strconv.FormatInt(product, 10) }

// Process charges an order and takes its quantity from the stock, or rejects it when there is
// not enough. No other caller processes it at the same time.
//
// Process takes two locks, always in this order, so that no two callers deadlock: the order's,
// for as long as the payment provider takes, and the product's, only for the transaction.
//
// Errors: ErrOrderBusy, ErrStockBusy, ErrNotFound, *ProcessedError, fence.ErrStale, and those
// of authorize: nothing was written. holdfast.ErrLost and those of the stores: the outcome is
// unknown, as where a commit got no answer; a retry is safe.
func (s *Shop) Process(ctx context.Context, id int64) (Order, error) {
	var done Order
	err := s.locks.Do(ctx, orderLock(id), func(ctx context.Context, order *holdfast.Lock) error {
		o, err := s.store.Pending(ctx, id, order.Token())
		if err != nil {
			return err
		}
		if err := s.authorize(ctx, o); err != nil {
			return fmt.Errorf("authorize the charge of order %d: %w", id, err)
		}
		err = s.locks.Do(ctx, stockLock(o.Product), func(ctx context.Context, stock *holdfast.Lock) error {
			done, err = s.store.Complete(ctx, o, order.Token(), stock.Token())
			return err
		}, holdfast.Wait(StockWait))
		return as(err, ErrStockBusy)
	}, holdfast.Wait(0))
	if err = as(err, ErrOrderBusy); s.written(ctx, err, done.ID != 0) {
		return done, nil
	}
	return Order{}, err
}

// Reserve takes a quantity from the stock of a product, and returns how much is left. A named
// request that was done before is not done again.
//
// Errors: ErrStockBusy, ErrNotFound, *StockError, ErrRequest, fence.ErrStale: nothing was
// written. holdfast.ErrLost and those of the stores: the outcome is unknown; a retry is safe
// for a named request.
func (s *Shop) Reserve(ctx context.Context, product int64, quantity int, request string) (Reserved, error) {
	var done Reserved
	err := s.locks.Do(ctx, stockLock(product), func(ctx context.Context, stock *holdfast.Lock) error {
		var err error
		done, err = s.store.Reserve(ctx, product, quantity, request, stock.Token())
		return err
	}, holdfast.Wait(StockWait))
	if err = as(err, ErrStockBusy); s.written(ctx, err, done.Product != 0) {
		return done, nil
	}
	return Reserved{}, err
}

// as wraps the error of a lock that other clients hold in busy.
func as(err, busy error) error {
	if errors.Is(err, holdfast.ErrHeld) && !errors.Is(err, ErrStockBusy) {
		return fmt.Errorf("%w: %w", busy, err)
	}
	return err
}

// written reports whether the write is done. A lock that was lost while the commit was
// answered, or that could not be released, does not undo what was committed under its token.
func (s *Shop) written(ctx context.Context, err error, committed bool) bool {
	if committed && err != nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "committed, but the lock was not released", slog.Any("error", err))
	}
	return committed
}
