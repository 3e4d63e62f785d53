// Package services has the jobs of a fleet of instances under Redlock: a file is processed by
// one of them, IDs have no gaps, one synchronises data at a time, and a critical operation is
// retried with a growing pause. Every write goes to the database with the fencing token of the
// lock, and the database refuses a smaller one.
package services
