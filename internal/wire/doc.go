// Package wire defines the requests and answers of Holdfast's HTTP API: what the server
// writes, and what backend/remotelock reads.
//
// Durations are strings in Go's syntax ("30s", "1m30s"), times are RFC 3339 in UTC with
// milliseconds, tokens are JSON numbers below 2^63, errors are problem documents (RFC 9457).
//
// Requests are decoded strictly ([Decode]): an unknown field, trailing data and invalid UTF-8 are refused. A client may
// ignore fields that it does not know in an answer.
package wire
