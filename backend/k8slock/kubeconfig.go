package k8slock

import (
	"cmp"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/holdfast-io/holdfast/backend"
)

func badFile(field, value, bound string) error {
	return &backend.InvalidError{Field: field, Value: strconv.QuoteToGraphic(value), Bound: bound}
}

// podFolder is where a pod finds its service account.
const podFolder = "/var/run/secrets/kubernetes.io/serviceaccount"

// podConfig returns how to reach the API server from a pod with the service account in the folder,
// and the pod's namespace.
func podConfig(folder, host, port string) (*rest.Config, string) {
	namespace, _ := os.ReadFile(filepath.Join(folder, "namespace")) //nolint:gosec // of the pod; without it the default applies
	return &rest.Config{
		Host: "https://" + net.JoinHostPort(host, port), BearerTokenFile: filepath.Join(folder, "token"),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(folder, "ca.crt")},
	}, strings.TrimSpace(string(namespace))
}

// readKubeconfig merges the files as kubectl does. It returns how to reach the API server of a
// context, and the context's namespace. An empty name means the current context.
func readKubeconfig(rules *clientcmd.ClientConfigLoadingRules, name string) (*rest.Config, string, error) {
	all, err := rules.Load()
	if err != nil || len(all.Contexts) == 0 {
		files := cmp.Or(rules.ExplicitPath, strings.Join(rules.Precedence, string(os.PathListSeparator)))
		return nil, "", badFile("kubeconfig", files, "in YAML, readable, and with a context") // err may contain a secret
	}
	return parseKubeconfig(all, rules, name)
}

// parseKubeconfig is readKubeconfig for files that were merged.
func parseKubeconfig(all *api.Config, files clientcmd.ConfigAccess, name string) (*rest.Config, string, error) {
	const known = "one of the kubeconfig"
	name = cmp.Or(name, all.CurrentContext)
	at := all.Contexts[name]
	if at == nil {
		return nil, "", badFile("context", name, known)
	}
	cluster, user := all.Clusters[at.Cluster], all.AuthInfos[at.AuthInfo]
	if cluster == nil { // client-go would use an empty one, as well as a user without credentials
		return nil, "", badFile("cluster", at.Cluster, known)
	}
	if user == nil && at.AuthInfo != "" {
		return nil, "", badFile("user", at.AuthInfo, known)
	}
	// client-go's own error contains the proxy's password.
	if u, err := url.Parse(cluster.ProxyURL); err != nil || !slices.Contains([]string{"", "http", "https", "socks5"}, u.Scheme) {
		return nil, "", badFile("proxy-url", "…", "like http://10.0.0.1:3128, https://... or socks5://...")
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*all, name, nil, files).ClientConfig()
	if err != nil {
		return nil, "", badFile("context", name, "usable: "+err.Error())
	}
	if config.ExecProvider != nil { // it belongs to the program, and to the command of holdfast run
		config.ExecProvider.StdinUnavailable = true
	}
	return config, at.Namespace, nil
}
