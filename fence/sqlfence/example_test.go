package sqlfence_test

import (
	"fmt"

	"github.com/holdfast-io/holdfast/fence/sqlfence"
)

// The table belongs in a migration of the program. Each write then runs in Guard.Do with the token of
// the lock, and a holder that was paused for too long is refused:
//
//	err := guard.Do(ctx, db, "stock:7", lock.Token(), func(tx *sql.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE id = 7")
//		return err
//	})
func ExampleGuard_Schema() {
	guard, err := sqlfence.New(sqlfence.Postgres, sqlfence.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(guard.Schema())
	// Output: CREATE TABLE IF NOT EXISTS holdfast_fence (resource TEXT NOT NULL PRIMARY KEY, epoch BIGINT NOT NULL, token BIGINT NOT NULL)
}
