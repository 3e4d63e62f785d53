// Package recipes has short answers to what locks are used for, on the public API. Each
// is a function to read and to copy, with an Example that is run by the tests.
package recipes
