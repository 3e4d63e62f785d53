// Package engines has what package bench measures and what is in this module: our client
// on each backend, and the bare commands of each engine. Peers are in bench/peers.
//
// One file for each engine: how it is reached and counted, its bare commands, and how a
// local server of it is started where the caller has none.
package engines
