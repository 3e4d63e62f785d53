package k8slock

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
)

// reserved is the prefix of the names of objects that are not named like their lock.
const reserved = "holdfast-"

const (
	hashedPrefix  = reserved + "lock-"
	sessionPrefix = reserved + "session-"
	maxObjectName = 253 // of a DNS subdomain
)

// objectName returns the name of a lock's Lease. It is the lock's own name if Kubernetes accepts
// it, so that a leader election of client-go on that Lease concerns the same lock. Any other name
// is hashed. Two locks never share an object.
func objectName(lock string) string {
	if isSubdomain(lock) && !strings.HasPrefix(lock, reserved) {
		return lock
	}
	return hashedPrefix + hash(lock)
}

// sessionName returns the name of a session's Lease.
func sessionName(id backend.SessionID) string { return sessionPrefix + hash(string(id)) }

// hash returns 256 bits in letters that Kubernetes accepts.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
}

// isSubdomain reports whether Kubernetes accepts the name: labels of a-z, 0-9 and -, which begin
// and end with a letter or digit, with dots between (RFC 1123).
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
