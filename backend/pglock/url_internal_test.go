package pglock

import (
	"errors"
	"testing"

	"github.com/holdfast-io/holdfast/internal/leasetest"
)

func FuzzURL(f *testing.F) {
	leasetest.FuzzURL(f, func(raw string) error {
		cfg, err := ParseURL(raw)
		if err == nil && cfg.Conn == nil {
			err = errors.New("no connection is configured")
		}
		return err
	},
		"postgres://u:p@h:1/db?schema=a&max_conns=7", "postgresql://h/db?sslmode=disable&listen=false", "postgres://h?connect_timeout=2", "postgres://",
		"postgres://h:x/db", "mysql://h/db", "postgres://h/db?schema=a.b")
}
