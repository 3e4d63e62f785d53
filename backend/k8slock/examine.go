package k8slock

import (
	"context"
	"net/http"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// verbs are the rights on Leases that are needed. docs/backends/kubernetes.md lists the same.
func verbs() []string { return []string{"get", "list", "watch", "create", "update", "delete"} }

// Examine asks the API server whether the user may do what Holdfast does with the Leases of the
// namespace. It implements backend.Examiner.
func (b *Backend) Examine(ctx context.Context) ([]backend.Finding, error) {
	ctx, done := backend.Within(ctx, b.base)
	defer done()
	var out []backend.Finding
	for _, verb := range verbs() {
		may, err := b.rest.may(ctx, b.cfg.Namespace, verb)
		if err != nil {
			return nil, b.fail(ctx, "examine", err, false)
		}
		if !may {
			out = append(out, backend.Finding{Text: connect.Lacks(name, "to "+verb+" leases in the namespace "+b.cfg.Namespace, nil).Error()})
		}
	}
	return out, nil
}

// may asks whether the user may do that with the Leases of the namespace. Every user may ask.
func (r *restAPI) may(ctx context.Context, namespace, verb string) (bool, error) {
	const api = "/apis/coordination.k8s.io/"
	server, _, _ := strings.Cut(r.leases, api)
	reviews := restAPI{client: r.client, clock: r.clock, leases: server + "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}
	body, err := reviews.send(ctx, http.MethodPost, "", map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": map[string]string{
			"namespace": namespace, "verb": verb, "group": "coordination.k8s.io", "resource": "leases",
		}},
	})
	if err != nil {
		return false, err
	}
	var review struct {
		Status struct {
			Allowed bool `json:"allowed"`
		} `json:"status"`
	}
	err = decode(body, &review)
	return review.Status.Allowed, err
}
