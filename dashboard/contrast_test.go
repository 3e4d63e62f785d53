package dashboard_test

import (
	"math"
	"strconv"
	"testing"
)

// luminance returns the relative luminance of a colour, "#1b1d1f", as WCAG defines it.
func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	if len(colour) != len("#000000") {
		t.Fatalf("no colour: %q", colour)
	}
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(colour[1+2*i:3+2*i], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= 0.04045 {
			sum += weight * c / 12.92
		} else {
			sum += weight * math.Pow((c+0.055)/1.055, 2.4)
		}
	}
	return sum
}
