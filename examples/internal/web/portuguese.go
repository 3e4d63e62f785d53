package web

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// Text is a problem for people. "{field}" in the detail stands for the field that is wrong.
type Text struct{ Title, Detail string }

// Portuguese is how a service tells its problems in Portuguese. A client chooses with Accept-Language.
type Portuguese struct {
	// Texts are the problems of the service, by their type. Those of this package are known. A problem without a text is told
	// in English. Required.
	Texts map[string]Text
	// First is true for a service that speaks Portuguese to clients that do not choose. Optional.
	First bool
}

// ours returns the problems of this package.
func ours() map[string]Text {
	return map[string]Text{
		"invalid":      {"Pedido inválido", "o campo {field} não é válido"},
		"too-large":    {"Pedido grande demais", "o corpo do pedido passa do limite"},
		"unavailable":  {"Serviço indisponível", "Um armazenamento de que o serviço precisa não respondeu, e não se sabe se algo foi feito. Tente de novo."},
		"method":       {"Método não permitido", "este caminho não tem esse método: veja o cabeçalho Allow"},
		"no-such-path": {"Não encontrado", "não há nada neste caminho"},
	}
}

// write sends a problem in the language that the client prefers.
func (pt Portuguese) write(w http.ResponseWriter, r *http.Request, p *ProblemError) {
	text, language := Text{cmp.Or(p.Title, http.StatusText(p.Status)), p.Detail}, "en"
	if pt.preferred(r.Header.Get("Accept-Language")) {
		texts := ours()
		maps.Copy(texts, pt.Texts)
		if in, ok := texts[p.Type]; ok {
			text, language = in, "pt"
			text.Detail = strings.ReplaceAll(text.Detail, "{field}", fmt.Sprint(p.With["field"]))
		}
	}
	w.Header().Set("Content-Language", language)
	w.Header().Set("Vary", "Accept-Language")
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.RetryAfter.Seconds()))))
	}
	write(w, p.Status, "application/problem+json", p.body(text))
}

// preferred reports whether Portuguese is the one of the two languages that Accept-Language prefers.
func (pt Portuguese) preferred(accept string) bool {
	portuguese, best := pt.First, 0.0
	for part := range strings.SplitSeq(accept, ",") {
		tag, weight, _ := strings.Cut(part, ";")
		q := 1.0
		if value, ok := strings.CutPrefix(strings.TrimSpace(weight), "q="); ok {
			q, _ = strconv.ParseFloat(value, 64) // 0 for what is no number
		}
		language, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(tag)), "-")
		if (language == "pt" || language == "en") && q > best {
			portuguese, best = language == "pt", q
		}
	}
	return portuguese
}
