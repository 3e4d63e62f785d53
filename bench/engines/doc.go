// Package engines provides the engines that package bench measures and the contenders of this
// module: our client on each backend, and the bare commands of each engine. Peers are in
// bench/peers.
//
// There is one file for each engine: how it is reached and metered, its bare commands, and how a
// local server is started if the caller has none.
package engines
