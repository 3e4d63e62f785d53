// Package testserver starts real servers for tests: each one a process of its
// own, on a free loopback port, with its own data folder, gone when the test is.
//
// A missing program fails the test. Nothing is skipped and nothing is faked: a
// backend counts as tested when it was tested against the server that people run.
//
// A server is a child that dies with the test process, also when the test process is killed
// (Linux). It is ended by its process ID, never by its name. Its output is kept and shown when
// the test fails.
//
// # Adding a server
//
// Add it to package launch, which starts it, and here what tests alone need of it. Of a server that
// only one test has, take a folder with [Dir] and a port with [FreePort], start the program with
// [Start], and wait until it answers with [Process.Await].
package testserver
