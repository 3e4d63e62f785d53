// Package supervise runs a command in a process group that is killed at a deadline, whatever happens to this process.
// A watchdog, which is another process, kills the group; see package helper.
package supervise
