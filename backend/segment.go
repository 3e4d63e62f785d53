package backend

import (
	"fmt"
	"strconv"
	"strings"
)

// EscapeSegment encodes the name of a lock as one segment of a path. Bytes that have a meaning in
// paths, or that stores do not allow there, become %XX. Letters, digits and -_:@=+, stay.
func EscapeSegment(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; isSegmentByte(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// UnescapeSegment is the inverse of EscapeSegment. The second result is false for text that
// EscapeSegment does not produce.
func UnescapeSegment(segment string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(segment); i++ {
		c := segment[i]
		if c == '%' {
			if i+3 > len(segment) {
				return "", false
			}
			n, err := strconv.ParseUint(segment[i+1:i+3], 16, 8)
			if err != nil {
				return "", false
			}
			c, i = byte(n), i+2
		} else if !isSegmentByte(c) {
			return "", false
		}
		b.WriteByte(c)
	}
	return b.String(), true
}

// isSegmentByte reports whether EscapeSegment leaves the byte as it is.
func isSegmentByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-_:@=+,", c) >= 0
}
