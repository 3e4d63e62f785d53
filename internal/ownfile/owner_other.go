//go:build !unix

package ownfile

import "os"

// checkOwner relies on the permissions of the folder.
func checkOwner(string, os.FileInfo) error { return nil }

// isOpen relies on the permissions of the folder.
func isOpen(os.FileMode) bool { return false }

// CanOthersWrite relies on the permissions of the folder.
func CanOthersWrite(os.FileMode) bool { return false }
