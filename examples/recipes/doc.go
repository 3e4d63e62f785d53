// Package recipes has short solutions to common uses of locks, on the public API. Each is a
// function to read and to copy, with an Example that is run by the tests.
package recipes
