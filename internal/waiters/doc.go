// Package waiters has what a backend value keeps of the calls in progress: requests that many callers
// hand to one transaction, and that can be withdrawn until then ([Request]); waiters whose leases are in
// a queue, and listeners of lost sessions and leases ([Registry]); and what a notification from another
// process asks to read ([Look]).
//
// The package sends nothing and has no goroutine. Its values are safe for concurrent use, except Look.
package waiters
