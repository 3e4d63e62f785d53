package recipes

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Account is a row with a version. Every write of the row raises the version, as in this table:
//
//	CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, version BIGINT NOT NULL);
type Account struct {
	ID, Balance, Version int64
}

// ErrChanged reports that other programs changed the row at each try.
var ErrChanged = errors.New("the row was changed by others, at each try")

// Update changes an account without a lock: it reads the row, lets change decide, and writes only if the version is
// still that which it read. Otherwise it begins again, tries times in all. change must not do anything that cannot be
// done twice; an error of it ends the update.
//
// No one waits, and no program that dies keeps others out. Under contention most tries fail: take a lock then, or
// one statement (UPDATE accounts SET balance = balance - 5 WHERE id = 1 AND balance >= 5).
//
// Errors: ErrChanged; sql.ErrNoRows; what change returned; those of the database, after which the row may be changed.
func Update(ctx context.Context, db *sql.DB, id int64, tries int, change func(*Account) error) error {
	for range tries {
		a := Account{ID: id}
		err := db.QueryRowContext(ctx, "SELECT balance, version FROM accounts WHERE id = $1", id).Scan(&a.Balance, &a.Version)
		if err != nil {
			return fmt.Errorf("read account %d: %w", id, err)
		}
		if err := change(&a); err != nil {
			return err
		}
		done, err := db.ExecContext(ctx, "UPDATE accounts SET balance = $2, version = version + 1 WHERE id = $1 AND version = $3",
			id, a.Balance, a.Version)
		if err != nil {
			return fmt.Errorf("write account %d: %w", id, err)
		}
		if rows, err := done.RowsAffected(); err != nil || rows == 1 {
			return err //nolint:wrapcheck // PostgreSQL returns none
		}
	}
	return fmt.Errorf("update account %d: %w", id, ErrChanged)
}
