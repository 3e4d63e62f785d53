package backend

import (
	"net"
	"strconv"
	"strings"
)

// Endpoint completes "host", "host:port", "[ipv6]" or "[ipv6]:port", as they appear in URLs, to an
// address for net.Dial. The second result is false for any other text. It is for backends whose
// URLs have several hosts, which package net/url does not parse.
func Endpoint(host, defaultPort string) (string, bool) {
	if host == "" || strings.ContainsAny(host, "%\\\"<>^`{|}@/ ") {
		return "", false
	}
	h, port, err := net.SplitHostPort(host)
	if err != nil {
		h, port = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), defaultPort
		if strings.Contains(h, ":") != (h != host) { // an IPv6 address needs brackets
			return "", false
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || h == "" || strings.ContainsAny(h, "[]") {
		return "", false
	}
	return net.JoinHostPort(h, port), true
}
