// Package access decides who may do what on a server: it reads principals and their grants from a
// file, and identifies the sender of each request.
//
//	file, err := access.Open("policy.yaml", access.Options{})
//	srv, err := server.New(b, server.Config{Identify: file.Identify, Authorize: file.Authorize, Quota: file.Quota})
//
// # The file
//
//	issuers:
//	  ci: {url: "https://ci.example.com", audience: holdfast}
//	principals:
//	  deploy: {subjects: {ci: ["repo:shop:main"]}}   # of tokens of that issuer
//	  billing:
//	    certificates: [billing.example.com]   # names in client certificates
//	    tokens: [9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08]   # SHA-256, at most two
//	    uids: [1001]                          # users of this host, on a Unix socket
//	  prometheus:
//	    tokens: [2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae]
//	  oncall: {certificates: ["spiffe://example.com/oncall"]}
//	groups:
//	  operators: [oncall]
//	grants:
//	- to: [billing]
//	  locks: [billing, orders/eu]
//	  verbs: [acquire, read]
//	- to: ["group:operators"]
//	  locks: ["*"]
//	  verbs: [read, break]
//	limits:
//	- to: [billing]
//	  locks: 10000       # leases held, on each node
//	- to: ["*"]
//	  locks: 100
//	  waiters: 100       # requests that wait for locks
//	  requests: 500      # in a second; renewals and releases are not counted
//
// Unknown keys are errors. A principal has all grants that name it, one of its groups, or "*", which is
// every principal of the file. What no grant allows is refused.
//
// # Locks
//
// A lock in a grant is a name, and stands for the locks of that name and for those below it: "billing"
// for "billing", "billing/invoice" and "billing:7", not for "billing2". Segments end at "/" and ":".
// "billing/" is only those below it. "*" is every lock.
//
// # Verbs
//
// "acquire" is to acquire locks, and to renew and release leases of one's own. "read" is to inspect,
// list and watch locks, without lease IDs. "break" is to end the leases of others, and to see their
// lease IDs. Every principal may read /metrics. Everybody
// may read /healthz, /readyz, /openapi.json and the page at /, which have no secrets. A principal may exchange its
// token for a session of the page (/v1/session), which reads, and breaks locks if that was requested.
//
// # Limits
//
// For each limit, the first entry that names a principal and has the limit applies. Without one, a
// principal may have half of the waiters and event streams of the server, and hold any number of locks. Renewals and
// releases are always served.
//
// # Identity
//
// A request with an Authorization header is that of the token's owner, or is refused. A token that is not in
// the file may be one of an issuer: an OpenID provider, whose keys Options.Verify reads. Its subject is looked
// up among those of that issuer. Otherwise it is that of the client certificate, of which each DNS name, URI and e-mail address is tried, and
// then that of the user at the other end of a Unix socket. In a name, the case of the host or domain and of the scheme
// does not count; that of the path of a URI and of the local part of an address does. Two tokens of one principal are valid at the
// same time, so that a token can be replaced without a gap.
package access
