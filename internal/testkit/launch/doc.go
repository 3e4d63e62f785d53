// Package launch starts the servers of stores as children of this process: each on a free loopback
// port, with its data in a folder of its own. Its table of kinds is the one of the tests (by package
// testserver) and of the program bench.
//
// A server can be killed, frozen and started again with its data, on a slow disk and with a clock
// that jumps (package shim). It is ended by its process ID, never by its name, and dies with this
// process, also if this process is killed (Linux). What answers at its address is proved to be the
// server that was started: by a process ID, a data folder or a name that the server reports.
//
// # Adding a kind
//
// Write the function that prepares the folder and returns the [Server], with its command line and
// its readiness. Add the kind to the table in kinds.go here, and to that of cluster_internal_test.go in
// verify/runner, which says how its clock may jump.
package launch
