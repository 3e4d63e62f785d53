//go:build !unix

package embedded

import (
	"fmt"
	"os"
	"path/filepath"
)

// lockDir only creates the file: on this system etcd itself waits for another process.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // the folder is the operator's choice
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	return f, nil
}
