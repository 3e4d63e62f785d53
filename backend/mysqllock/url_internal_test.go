package mysqllock

import (
	"errors"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

func FuzzURL(f *testing.F) {
	leasetest.FuzzURL(f, func(raw string) error {
		cfg, err := ParseURL(raw)
		if err == nil && (cfg.Conn == nil || cfg.Conn.DBName == "" || cfg.Conn.Addr == "") {
			err = errors.New("no connection is configured")
		}
		return err
	},
		"mysql://u:p@h:1/db?prefix=a_&max_conns=7", "mysql://h/db?tls=true&connect_timeout=2s", "mysql://h/db?socket=/run/s", "mysql://h", "mysql://h/a/b", "mysql:x",
		"mysql://h/db?tls=maybe", "mysql://h/db#x")
}
