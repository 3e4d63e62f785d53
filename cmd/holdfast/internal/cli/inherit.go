package cli

import (
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-io/holdfast"
)

const (
	// backendVariable names the backend where --backend does not.
	backendVariable = "HOLDFAST_BACKEND"
	// withheld is its value for the command of "holdfast run" instead of a URL with a secret. Without any value a
	// holdfast in that command would use the local file, and grant what another client holds.
	withheld = "withheld:"
)

// backendOfEnvironment returns the URL of the backend in the environment; "" if there is none.
func backendOfEnvironment() (string, error) {
	raw := os.Getenv(backendVariable)
	if raw == withheld {
		return "", usageError(backendVariable, `was not passed on to the command, because it has a secret: name the backend there, keep the secret in a file (token_file), or add --pass-backend to "holdfast run"`)
	}
	return raw, nil
}

// childEnv returns the environment of this process with the lock added. It drops the values that an outer
// "holdfast run" has set: of two values the command would see the first. Unless passBackend, the command does not
// inherit the secret in the URL of the backend.
func (a *app) childEnv(lock *holdfast.Lock, passBackend bool) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"HOLDFAST_LOCK", "HOLDFAST_TOKEN", "HOLDFAST_LEASE"}, name)
	})
	for i, v := range env {
		if raw, ok := strings.CutPrefix(v, backendVariable+"="); ok && !passBackend && hasSecret(raw) {
			env[i] = backendVariable + "=" + withheld
		}
	}
	return append(env,
		"HOLDFAST_LOCK="+lock.Name(), "HOLDFAST_TOKEN="+strconv.FormatUint(uint64(lock.Token()), 10),
		"HOLDFAST_LEASE="+string(lock.Lease().ID))
}

// hasSecret reports whether the URL of a backend has a password, or a parameter that may be secret. It may be a URL
// with several hosts, which package url refuses.
func hasSecret(raw string) bool {
	address, query, _ := strings.Cut(raw, "?")
	_, rest, _ := strings.Cut(address, "://")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 && strings.Contains(rest[:at], ":") {
		return true
	}
	params, err := url.ParseQuery(query)
	for name := range params {
		if isSecret(name) {
			return true
		}
	}
	return err != nil
}

// isSecret reports whether a parameter of a URL may be secret.
func isSecret(name string) bool {
	lower := strings.ToLower(name)
	return strings.Contains(lower, "password") || strings.Contains(lower, "secret") || lower == "token"
}
