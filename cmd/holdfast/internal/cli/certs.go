package cli

import (
	"fmt"
	"net"
	neturl "net/url"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/internal/certs"
)

func (a *app) certsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Make certificates for a first server with mutual TLS",
		Long: `Make a certificate authority in a folder, and certificates that it signs, to try out mutual
TLS. The certificates are valid for one year. Only your user can read the files; a file that
exists is never replaced.

The key of the authority stays in the folder, unprotected: whoever reads it can make a
certificate for every principal and for every server. For a service that others depend on,
use the authority that your organisation has.`,
		Example: `  holdfast certs init certs --host locks.example.com
  holdfast certs client certs billing`,
	}
	cmd.AddCommand(a.certsInitCommand(), a.certsServerCommand(), a.certsClientCommand())
	return cmd
}

const (
	serverFile, clientFile = "server", "client"
	policyFile             = "policy.yaml"
)

// firstPolicy lets the client of certs init do everything, and nobody else anything.
const firstPolicy = `# Who may do what on this server: see docs/operations.md. It is read again when it changes.
principals:
  client: {certificates: [client]}
grants:
- {to: [client], locks: ["*"], verbs: [acquire, read, break]}
`

func (a *app) certsInitCommand() *cobra.Command {
	var hosts []string
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Make an authority, and certificates of a server and of a client",
		Long: `Make an authority (ca.pem and ca.key), a certificate of the server for localhost and for each
--host (server.pem and server.key), a certificate of the principal "client" (client.pem and
client.key), and a policy that lets this principal do everything (policy.yaml). Print the
flags of "holdfast serve" and the URL of the client that use them.

The folder is created, or belongs to you and no other user can write to it. None of the files
may exist.`,
		Example: `  holdfast certs init certs
  holdfast certs init /etc/holdfast/certs --host locks.example.com --host 10.0.0.7`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := certsFolder(args[0], hosts...)
			if err != nil {
				return err
			}
			err = dir.Create("Holdfast test authority", map[string][]byte{policyFile: []byte(firstPolicy)},
				certs.Wanted{File: serverFile, Use: certs.Server, Hosts: withLoopback(hosts)},
				certs.Wanted{File: clientFile, Use: certs.Client, Hosts: []string{clientFile}})
			if err != nil {
				return err
			}
			listen, host := "", "localhost"
			if len(hosts) > 0 {
				listen, host = " --listen :7420", hosts[0]
			}
			serve := "holdfast serve" + listen + " --tls-cert " + quoted(dir.Cert(serverFile)) + " --tls-key " + quoted(dir.Key(serverFile)) +
				" --tls-client-ca " + quoted(dir.CA()) + " --policy " + quoted(filepath.Join(string(dir), policyFile))
			return a.printCerts(dir, [][2]string{{"serve", serve}, {"client", clientURL(dir, clientFile, host)}})
		},
	}
	cmd.Flags().StringArrayVar(&hosts, "host", nil, "name or IP address at which clients reach the server, beside localhost; may be repeated")
	return cmd
}

func (a *app) certsServerCommand() *cobra.Command {
	var hosts []string
	cmd := &cobra.Command{
		Use:   "server DIR NAME",
		Short: "Make another certificate of a server",
		Long: `Make a certificate of a server in a folder of "holdfast certs init", for localhost and for each
--host, in NAME.pem and NAME.key. To replace the certificate of a server that runs, rename
these files to those that the server reads: it reads them again.`,
		Example: `  holdfast certs server certs next --host locks.example.com`,
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := certsFolder(args[0], append(hosts, args[1])...)
			if err != nil {
				return err
			}
			if err := dir.Issue(certs.Wanted{File: args[1], Use: certs.Server, Hosts: withLoopback(hosts)}); err != nil {
				return err
			}
			return a.printCerts(dir, [][2]string{{"serve", "--tls-cert " + quoted(dir.Cert(args[1])) + " --tls-key " + quoted(dir.Key(args[1]))}})
		},
	}
	cmd.Flags().StringArrayVar(&hosts, "host", nil, "name or IP address at which clients reach the server, beside localhost; may be repeated")
	return cmd
}

func (a *app) certsClientCommand() *cobra.Command {
	var host string
	cmd := &cobra.Command{
		Use:   "client DIR NAME",
		Short: "Make a certificate of another client",
		Long: `Make a certificate of a client in a folder of "holdfast certs init", in NAME.pem and NAME.key.
NAME is the name by which a policy knows the client; print the line that the policy needs.`,
		Example: `  holdfast certs client certs billing`,
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := certsFolder(args[0], host, args[1])
			if err != nil {
				return err
			}
			if err := dir.Issue(certs.Wanted{File: args[1], Use: certs.Client, Hosts: []string{args[1]}}); err != nil {
				return err
			}
			principal := fmt.Sprintf("%q: {certificates: [%[1]q]}", args[1]) // quoted: YAML takes 7 and no for other values
			return a.printCerts(dir, [][2]string{{"principal", principal}, {"client", clientURL(dir, args[1], host)}})
		},
	}
	cmd.Flags().StringVar(&host, "host", "localhost", "name or IP address of the server, for the URL that is printed")
	return cmd
}

// certsFolder checks the names, of hosts and of files, and returns the folder with its whole path.
func certsFolder(dir string, names ...string) (certs.Folder, error) {
	if dir == "" || oneLine(dir) != dir {
		return "", usageError("DIR", "%q: must be the path of a folder, without control characters", dir)
	}
	const most = 64
	for _, name := range names {
		bad := func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
		}
		if net.ParseIP(name) == nil && (name == "" || len(name) > most || strings.ContainsFunc(name, bad) || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "-")) {
			return "", usageError("name", "%q: must be 1 to %d letters, digits, \".\", \"_\" and \"-\", beginning with a letter or a digit; a host may be an IP address", oneLine(name), most)
		}
	}
	whole, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("certs: %w", err)
	}
	return certs.Folder(whole), nil
}

func withLoopback(hosts []string) []string {
	return append(append([]string{}, hosts...), "localhost", "127.0.0.1", "::1")
}

// clientURL returns the URL of a client with the certificate.
func clientURL(dir certs.Folder, name, host string) string {
	u := neturl.URL{Scheme: "holdfasts", Host: net.JoinHostPort(host, "7420")}
	return u.String() + "?ca=" + escapedPath(dir.CA()) + "&cert=" + escapedPath(dir.Cert(name)) + "&key=" + escapedPath(dir.Key(name))
}

// escapedPath escapes a path for a query, but not its slashes: it stays readable.
func escapedPath(path string) string {
	return strings.ReplaceAll(neturl.QueryEscape(path), "%2F", "/")
}

// quoted quotes a word for a shell, if that needs quotes.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+,:=@%", r)
	}
	if strings.TrimFunc(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// printCerts prints where the files are, and how to use them.
func (a *app) printCerts(dir certs.Folder, uses [][2]string) error {
	if a.json {
		out := map[string]any{"dir": string(dir)}
		for _, use := range uses {
			out[use[0]] = use[1]
		}
		return a.printJSON(out)
	}
	for _, use := range uses {
		line := use[1]
		switch use[0] {
		case "client":
			line = "export HOLDFAST_BACKEND=" + quoted(line)
		case "principal":
			line = "Add to the principals of the policy: " + line
		}
		if err := a.line(a.stdout, "%s", line); err != nil {
			return err
		}
	}
	return nil
}
