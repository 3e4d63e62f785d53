package rowlock

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/holdfast-io/holdfast/fence"
)

// maxName is the longest name of a lock, in bytes.
const maxName = 512

// Name acquires a lock with a name within the caller's transaction, on PostgreSQL, and waits for it until
// ctx ends or lock_timeout of the connection has elapsed:
//
//	err := rowlock.Name(ctx, rowlock.SQL(tx), "order:7")
//
// It is for what has no row, or not yet. No other transaction acquires the same name until tx ends,
// whether it commits or not. The lock is an advisory lock of the database (pg_advisory_xact_lock), and
// its key is 64 bits of the SHA-256 of the name: two names with the same key exclude each other, and do no
// other harm. Acquire several names in one order everywhere, or two transactions can wait for each other.
//
// After an error of the database the transaction can only be rolled back.
//
// Errors: *LockError (ErrBusy after lock_timeout, ErrDeadlock); *fence.InvalidError, with nothing sent;
// those of the database.
func Name(ctx context.Context, tx Tx, name string) error {
	if err := validateName(name); err != nil {
		return err
	}
	return failName(name, tx.exec(ctx, "SELECT 1 FROM pg_advisory_xact_lock($1)", nameKey(name)))
}

// TryName is Name without waiting. It returns *LockError with ErrBusy if another transaction has the name;
// the transaction can continue then.
func TryName(ctx context.Context, tx Tx, name string) error {
	if err := validateName(name); err != nil {
		return err
	}
	got := false
	err := tx.query(ctx, "SELECT pg_try_advisory_xact_lock($1)", []any{nameKey(name)}, func(row Row) error { return row.Scan(&got) })
	if err == nil && !got {
		return &LockError{Kind: ErrBusy, Lock: name, Err: ErrBusy}
	}
	return failName(name, err)
}

func validateName(name string) error {
	if name == "" || len(name) > maxName || !utf8.ValidString(name) {
		return &fence.InvalidError{
			Field: "name", Value: strconv.QuoteToASCII(name[:min(len(name), maxIdentifier)]), Bound: fmt.Sprintf("1 to %d bytes of UTF-8", maxName),
		}
	}
	return nil
}

// nameKey is the key of the advisory lock. Keys of other programs are seldom the same.
func nameKey(name string) int64 {
	sum := sha256.Sum256([]byte("holdfast rowlock\x00" + name))
	return int64(binary.BigEndian.Uint64(sum[:])) //nolint:gosec // all 64 bits count
}

func failName(name string, err error) error {
	if err == nil {
		return nil
	}
	if kind := kindOf(err); kind != nil {
		return &LockError{Kind: kind, Lock: name, Over: true, Err: err}
	}
	return fmt.Errorf("lock the name %q: %w", name, err)
}
