// Package services is what a fleet of instances does under Redlock: a file is processed by
// one of them, IDs have no gaps, one synchronises data at a time, and a critical operation
// is tried again with a growing pause. Whatever is written goes to the database with the
// fencing token of the lock, and the database refuses a smaller one.
package services
