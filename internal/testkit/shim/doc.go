// Package shim puts two faults between a server and its machine: a slow [Disk] that loses in a
// crash what was not synced, and a wall [Clock] that jumps. Both work for unmodified servers.
//
// The shims are written in C and compiled with gcc when they are needed. They need Linux 5.19 or
// newer, on x86-64 or arm64. What a machine cannot do is reported as [ErrUnsupported].
package shim
