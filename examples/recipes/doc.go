// Package recipes has short solutions to common uses of locks, on the public API. Each is a
// function to read and to copy, with a test on a real store.
package recipes
