package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/holdfast-io/holdfast/rowlock"
)

// post sends v to a service outside of the database. The key is its idempotency key: the same request, sent again, is
// done once. Errors: of the network; any status but 2xx.
func post(ctx context.Context, url, key string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	answer, err := http.DefaultClient.Do(r) //nolint:gosec // the URL is from the command line
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10))
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("%s: %s", key, answer.Status)
	}
	return nil
}

// Payments returns an Authorize that asks a payment provider over HTTP: POST of the order as JSON. 2xx: it can be charged.
func Payments(url string) Authorize {
	return func(ctx context.Context, o Order) error { return post(ctx, url, fmt.Sprint("order-", o.ID), o) }
}

// mailTime bounds the sending of one e-mail: a transaction is open meanwhile.
const mailTime = 3 * time.Second

// Mail sends the confirmations of completed orders, until ctx ends: POST of {"order":7} to a mail service. Any number of
// instances do it. A confirmation is a row that the transaction of the order has written, so that an order that was rolled
// back sends none; one that was completed sends one, also when its instance dies. It may be sent twice, with the same
// idempotency key.
func Mail(ctx context.Context, store *Store, url string, log *slog.Logger) {
	for {
		sent, err := store.SendMail(ctx, func(ctx context.Context, order int64) error {
			return post(ctx, url, fmt.Sprint("order-", order, "-confirmation"), map[string]int64{"order": order})
		})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			log.LogAttrs(ctx, slog.LevelWarn, "a confirmation was not sent, and will be sent again", slog.Any("error", err))
		}
		if sent && err == nil {
			continue
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return
		}
	}
}

// SendMail sends the confirmation of one order that no other instance is sending, and reports whether there was one.
// Errors: what send returned; the database's. It is sent again then.
func (s *Store) SendMail(ctx context.Context, send func(ctx context.Context, order int64) error) (bool, error) {
	mails, err := rowlock.New(rowlock.Postgres, rowlock.Config{Table: "mail", Key: "order_id"})
	if err != nil {
		return false, err
	}
	found := false
	err = s.tx(ctx, func(tx *sql.Tx) error {
		var order int64
		n, err := mails.Claim(ctx, rowlock.SQL(tx), rowlock.Batch{
			Limit: 1, Where: "NOT sent", Scan: func(row rowlock.Row) error { return row.Scan(&order) },
		})
		if found = n > 0; err != nil || !found {
			return err
		}
		sending, cancel := context.WithTimeoutCause(ctx, mailTime, errors.New("the mail service did not answer"))
		defer cancel()
		if err := send(sending, order); err != nil {
			return err
		}
		return exec(ctx, tx, "UPDATE mail SET sent = true WHERE order_id = $1", order)
	})
	return found, err
}
