//go:build !unix

package embedded

import "os"

// checkOwner leaves it to the permissions of the folder.
func checkOwner(string, os.FileInfo) error { return nil }

// isOpen leaves it to the permissions of the folder.
func isOpen(os.FileMode) bool { return false }
