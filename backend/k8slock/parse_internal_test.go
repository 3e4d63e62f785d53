package k8slock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

func FuzzURL(f *testing.F) {
	leasetest.FuzzURL(f, func(raw string) error {
		got, err := parseURL(raw)
		if err == nil && strings.ContainsAny(got.namespace, "/@:#") {
			err = fmt.Errorf("parsed as %+v", got)
		}
		return err
	},
		"kubernetes://", "kubernetes://ns?kubeconfig=/x&context=c", "kubernetes://ns/?foreign=10m", "kubernetes://ns?foreign=1ns", "kubernetes://a/b", "kubernetes://ns#x", "k8s://ns", "kubernetes://ns?foreign=1m&foreign=2m")
}

// FuzzKubeconfig reads nonsensical files: the result is an *InvalidError that contains no token, or
// what can be made a backend of.
func FuzzKubeconfig(f *testing.F) {
	const file = `current-context: a
contexts: [{name: a, context: {cluster: c, user: u, namespace: team}}]
clusters: [{name: c, cluster: {server: "https://h:1"}}]
users: [{name: u, user: {token: canary-7f3a}}]`
	if all, err := clientcmd.Load([]byte(file)); err != nil || len(all.Contexts) != 1 {
		f.Fatalf("the seeds are no kubeconfigs: %+v, %v", all, err) // YAML reads a bare n or no as a boolean
	}
	for _, s := range []string{
		file, "", "a: [", "current-context: x", strings.Replace(file, "token:", "username:", 1), strings.Replace(file, "https", "ftp", 1),
		strings.Replace(file, "token: canary-7f3a", "client-certificate-data: '!', client-key-data: eA==", 1),
		strings.Replace(file, "token: canary-7f3a", "exec: {command: canary-7f3a}", 1),
		strings.Replace(file, "token: canary-7f3a", "exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: a, env: [{name: A, value: canary-7f3a}]}", 1),
		strings.Replace(file, "server:", "proxy-url: 'socks4://u:canary-7f3a@h', server:", 1),
	} {
		f.Add([]byte(s), "")
	}
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		all, err := clientcmd.Load(text)
		if err != nil {
			return
		}
		config, _, err := parseKubeconfig(all, nil, name)
		if err == nil {
			if config.ExecProvider != nil && !config.ExecProvider.StdinUnavailable {
				t.Errorf("%q: a login program may read the standard input", text)
			}
			_, err = NewForConfig(config, Config{})
		}
		if err != nil && (!errors.Is(err, backend.ErrInvalid) || !strings.Contains(name, "canary") && strings.Contains(err.Error(), "canary-7f3a")) {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// FuzzRecord reads what other programs may have written to a Lease: what is understood is written,
// and read again, unchanged.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{
		"", "{", `{"name":"n"}`, `{"name":"other"}`, `{"name":"n","last":7,"queue":[{"i":"a","s":"b","t":5},{"i":"c","s":"d","m":1,"l":3,"p":2}]}`,
		`{"name":"n","id":"holdfast_a","queue":[{"i":"a","s":"b","t":18446744073709551615,"g":-1}]}`, `{"name":"n","broken":{"l":["a"],"r":"x"}}`,
	} {
		f.Add(s, "holdfast_a")
	}
	f.Fuzz(func(t *testing.T, text, holder string) {
		o := newObject(objectName("n"))
		o.Metadata.ResourceVersion = "7"
		o.Metadata.Annotations[stateKey] = text
		o.Spec.HolderIdentity = holder
		r, err := open("n", o)
		if err != nil {
			return
		}
		_ = r.describe()
		_ = r.admits()
		sealed, err := r.seal(time.Unix(1, 0), time.Minute)
		if err != nil {
			return // it is too long
		}
		again, err := open("n", sealed)
		if err != nil || len(again.Queue) != len(r.Queue) || again.Last != r.Last || again.foreign != r.foreign {
			t.Errorf("%q by %q: %+v, and then %+v, %v", text, holder, r, again, err)
		}
	})
}

// FuzzObjectName: two locks never share an object, and Kubernetes accepts every name.
func FuzzObjectName(f *testing.F) {
	for _, s := range []string{"a", "a.b", "A", "-a", "holdfast-lock-x", "a/b", strings.Repeat("a", 254), "é"} {
		f.Add(s, "b")
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		if one != other && objectName(one) == objectName(other) {
			t.Errorf("%q and %q are both %q", one, other, objectName(one))
		}
		if name := objectName(one); !isSubdomain(name) {
			t.Errorf("%q is %q, which Kubernetes does not take", one, name)
		}
	})
}
