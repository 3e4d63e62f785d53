package k8slock

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
)

// reserved begins the names of objects that are not named like their lock.
const reserved = "holdfast-"

const (
	hashedPrefix  = reserved + "lock-"
	sessionPrefix = reserved + "session-"
	maxObjectName = 253 // of a DNS subdomain
)

// objectName is the name of a lock's Lease: the lock's own where Kubernetes takes it, so
// that a leader election of client-go on that Lease is about the same lock; else one made
// of its hash. Two locks never share an object.
func objectName(lock string) string {
	if isSubdomain(lock) && !strings.HasPrefix(lock, reserved) {
		return lock
	}
	return hashedPrefix + hash(lock)
}

// sessionName is the name of a session's Lease.
func sessionName(id backend.SessionID) string { return sessionPrefix + hash(string(id)) }

// hash is 256 bits in letters that Kubernetes takes.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
}

// isSubdomain reports whether Kubernetes takes the name: labels of a-z, 0-9 and -, which
// begin and end with a letter or digit, with dots between (RFC 1123).
func isSubdomain(name string) bool {
	if len(name) > maxObjectName {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			if c := label[i]; c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
				return false
			}
		}
	}
	return true
}
