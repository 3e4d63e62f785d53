package wire

import (
	"bytes"
	"time"
)

// maxKeys is the number of fields that an object may have for quick. Ours have fewer.
const maxKeys = 16

// quick reports that scan would accept the body. It handles bodies as clients write them:
// without escapes and with whole numbers. false means nothing, and scan decides then. It
// exists because scan, on the tokens of encoding/json, costs more than everything else in a
// request.
func quick(body []byte) bool {
	q := quickScan{b: body}
	return q.next() == '{' && q.object(1) && q.next() == 0 && q.at == len(body)
}

type quickScan struct {
	b  []byte
	at int
}

// next returns the next byte that is not space, without consuming it; 0: there is none.
func (q *quickScan) next() byte {
	for ; q.at < len(q.b); q.at++ {
		switch c := q.b[q.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// takes consumes the next byte that is not space, if it is c.
func (q *quickScan) takes(c byte) bool {
	if q.next() != c {
		return false
	}
	q.at++
	return true
}

func (q *quickScan) object(depth int) bool {
	q.at++
	if q.takes('}') {
		return true
	}
	var keys [maxKeys][]byte
	for n := range maxKeys {
		key, ok := q.text()
		if !ok || !isKey(key) || !q.takes(':') {
			return false
		}
		for _, k := range keys[:n] {
			if bytes.Equal(k, key) {
				return false
			}
		}
		keys[n] = key
		if string(key) == "ttl" || string(key) == "wait" {
			ok = q.duration()
		} else {
			ok = q.value(depth)
		}
		switch {
		case !ok:
			return false
		case q.takes('}'):
			return true
		case !q.takes(','):
			return false
		}
	}
	return false
}

func isKey(key []byte) bool {
	for _, c := range key {
		if c != '_' && (c < 'a' || c > 'z') {
			return false
		}
	}
	return len(key) > 0
}

func (q *quickScan) duration() bool {
	text, ok := q.text()
	if !ok {
		return false
	}
	_, err := time.ParseDuration(string(text))
	return err == nil
}

func (q *quickScan) array(depth int) bool {
	q.at++
	if q.takes(']') {
		return true
	}
	for q.value(depth) {
		if q.takes(']') {
			return true
		}
		if !q.takes(',') {
			return false
		}
	}
	return false
}

func (q *quickScan) value(depth int) bool {
	switch c := q.next(); {
	case c == '{':
		return depth < MaxDepth && q.object(depth+1)
	case c == '[':
		return depth < MaxDepth && q.array(depth+1)
	case c == '"':
		_, ok := q.text()
		return ok
	case c == 't':
		return q.word("true")
	case c == 'f':
		return q.word("false")
	case '1' <= c && c <= '9':
		for q.at < len(q.b) && '0' <= q.b[q.at] && q.b[q.at] <= '9' {
			q.at++
		}
		return true // what follows must be a comma or an end
	}
	return false
}

func (q *quickScan) word(w string) bool {
	if !bytes.HasPrefix(q.b[q.at:], []byte(w)) {
		return false
	}
	q.at += len(w)
	return true
}

// text consumes a string without escapes.
func (q *quickScan) text() ([]byte, bool) {
	if !q.takes('"') {
		return nil, false
	}
	from := q.at
	for ; q.at < len(q.b); q.at++ {
		switch c := q.b[q.at]; {
		case c == '"':
			q.at++
			return q.b[from : q.at-1], true
		case c == '\\' || c < ' ':
			return nil, false
		}
	}
	return nil, false
}
